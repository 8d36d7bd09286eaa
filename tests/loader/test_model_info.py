"""What a model file is said to hold and need, against sums over its tensors."""

from moeengine.loader.model_file import ModelFile
from moeengine.loader.model_info import describe
from tests.tiny import write_tiny


def test_figures_add_up(tmp_path):
    tiny = write_tiny(tmp_path / "a.gguf", n_expert=6, n_expert_used=2, n_layer=3)
    with ModelFile.open(tiny.path) as file:
        info = describe(file, n_ctx=100)
        experts = [t for n, t in file.tensors.items() if "_exps" in n]
        dense = [
            t for n, t in file.tensors.items() if "_exps" not in n and n != "token_embd.weight"
        ]
        assert info.experts.total_bytes == sum(t.n_bytes for t in experts)
        assert info.dense_bytes == sum(t.n_bytes for t in dense)
        assert info.row_bytes == file.tensors["token_embd.weight"].row_bytes
        assert sum(q.n_bytes for q in info.quants) == file.tensor_bytes
    one = info.experts.total_bytes // 18
    assert info.experts.expert_bytes_min == info.experts.expert_bytes_max == one
    assert info.experts.token_bytes == 3 * 2 * one
    assert info.token_bytes == info.dense_bytes + info.row_bytes + 6 * one
    assert info.kv_bytes == 100 * 3 * 2 * (16 + 16) * 2  # layers, KV heads, keys and values, F16
    assert info.smallest_budget == info.dense_bytes + info.kv_bytes + 6 * one
    assert info.useful_budget == info.smallest_budget + 6 * one


def test_a_tied_head_is_read_whole(tmp_path):
    tiny = write_tiny(tmp_path / "a.gguf", tied=True)
    with ModelFile.open(tiny.path) as file:
        info = describe(file)
    assert info.row_bytes == 0


def test_tiers_of_different_types(tmp_path):
    tiny = write_tiny(tmp_path / "a.gguf", tiers=[(4, "Q8_0"), (2, "Q4_0")])
    with ModelFile.open(tiny.path) as file:
        info = describe(file)
    assert info.experts.n_expert == 6
    assert info.experts.expert_bytes_min < info.experts.expert_bytes_max
    assert {q.qtype for q in info.quants if q.is_expert} == {"Q8_0", "Q4_0"}
