"""From a prompt to an answer: the calls a program makes on a loaded model.

engine.py       Engine: a model file, loaded
session.py      Session: one timeline of tokens
generation.py   one request for text: Generation, Stream, Completion
answer_text.py  tokens to text: whole characters, exact stop strings
prompts.py      text, ids and messages to token ids
runtime.py      what sessions share; the only way to the compiled model
turns.py        who works when; cancelling and Ctrl-C
kv_file.py      saved timelines
blas.py         NumPy's threads kept away from ours
"""

from moeengine.engine.engine import Engine
from moeengine.engine.generation import Completion, Stream
from moeengine.engine.session import Session

__all__ = ["Completion", "Engine", "Session", "Stream"]
