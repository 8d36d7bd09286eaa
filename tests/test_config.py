"""Every setting: what is refused, how the message reads, what a null means."""

import math

import pytest

from moeengine.config import EngineConfig, GenerationParams, SamplingParams
from moeengine.errors import ConfigError


@pytest.mark.parametrize(
    "kind, settings, words",
    [
        (EngineConfig, {"n_ctx": 0}, ("n_ctx", "0", "at least 1|1 to")),
        (EngineConfig, {"n_ctx": 2**31}, ("n_ctx", "2147483648")),
        (EngineConfig, {"n_ctx": "512"}, ("n_ctx", "'512'", "integer")),
        (EngineConfig, {"n_threads": True}, ("n_threads", "True")),
        (EngineConfig, {"n_threads": 1.5}, ("n_threads", "1.5")),
        (EngineConfig, {"n_ubatch": -1}, ("n_ubatch", "-1")),
        (EngineConfig, {"moe_mode": 3}, ("moe_mode", "3", "mode")),
        (EngineConfig, {"cache_mb": "lots"}, ("cache_mb", "'lots'")),
        (EngineConfig, {"cache_mb": -1}, ("cache_mb", "-1")),
        (EngineConfig, {"cache_policy": "fifo"}, ("cache_policy", "fifo", "lru")),
        (EngineConfig, {"io_threads": 9}, ("io_threads", "9", "1 to 8")),
        (EngineConfig, {"sweep_min_tokens": 1}, ("sweep_min_tokens", "1", "at least 2")),
        (SamplingParams, {"temperature": -1}, ("temperature", "-1", "from 0")),
        (SamplingParams, {"temperature": math.nan}, ("temperature", "nan")),
        (SamplingParams, {"temperature": "hot"}, ("temperature", "'hot'")),
        (SamplingParams, {"top_k": -1}, ("top_k", "-1")),
        (SamplingParams, {"top_p": 1.01}, ("top_p", "1.01", "0 to 1")),
        (SamplingParams, {"min_p": -0.1}, ("min_p", "-0.1")),
        (SamplingParams, {"repeat_penalty": 0}, ("repeat_penalty", "0")),
        (SamplingParams, {"repeat_penalty": 1e308}, ("repeat_penalty", "1e+06")),
        (SamplingParams, {"frequency_penalty": 1e308}, ("frequency_penalty", "1e+06")),
        (SamplingParams, {"presence_penalty": 1e308}, ("presence_penalty", "1e+06")),
        (SamplingParams, {"logit_bias": {1: 1e308}}, ("logit_bias[1]", "1e+09")),
        (SamplingParams, {"repeat_last_n": -2}, ("repeat_last_n", "-2", "-1")),
        (SamplingParams, {"presence_penalty": math.inf}, ("presence_penalty", "inf")),
        (SamplingParams, {"seed": -1}, ("seed", "-1")),
        (SamplingParams, {"seed": 2**64}, ("seed",)),
        (SamplingParams, {"logit_bias": [1]}, ("logit_bias", "dict")),
        (SamplingParams, {"logit_bias": {-1: 0.0}}, ("logit_bias", "-1")),
        (SamplingParams, {"logit_bias": {3: math.nan}}, ("logit_bias[3]", "nan")),
        (GenerationParams, {"max_tokens": -2}, ("max_tokens", "-2")),
        (GenerationParams, {"stop": ""}, ("stop", "none of them empty")),
        (GenerationParams, {"stop": ["a", 3]}, ("stop", "3")),
        (GenerationParams, {"stop": 3}, ("stop", "3")),
        (GenerationParams, {"logprobs": -1}, ("logprobs", "-1")),
        (GenerationParams, {"sampling": {}}, ("sampling", "SamplingParams")),
    ],
)
def test_refused_with_name_found_and_expected(kind, settings, words):
    with pytest.raises(ConfigError) as caught:
        kind(**settings)
    message = str(caught.value)
    assert "expected" in message
    for word in words:
        assert any(part in message for part in word.split("|")), message


def test_unknown_settings_name_the_nearest():
    with pytest.raises(ConfigError, match="temprature.*did you mean temperature"):
        GenerationParams.of({"temprature": 1})
    with pytest.raises(ConfigError, match="n_cxt.*did you mean n_ctx"):
        EngineConfig.of({"n_cxt": 1})


def test_one_flat_dict_fills_both():
    params = GenerationParams.of({"max_tokens": 3, "stop": "x", "temperature": 0, "seed": 5})
    assert (params.max_tokens, params.stop) == (3, ("x",))
    assert (params.sampling.temperature, params.sampling.seed) == (0, 5)
    with pytest.raises(ConfigError, match="sampling.*temperature"):
        GenerationParams.of({"temperature": 0, "sampling": SamplingParams()})


def test_null_is_the_same_as_omitted():
    names = ("max_tokens", "stop", "logprobs", "top_k", "temperature", "seed", "logit_bias")
    assert GenerationParams.of(dict.fromkeys(names)) == GenerationParams()


def test_a_setting_cannot_change_later():
    with pytest.raises(AttributeError):
        SamplingParams().top_k = 3
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[4] = 1.0
    assert params.logit_bias == {3: 1.0}
