"""Answers of gpt-oss, whose control tokens say which part is thought and which is for the user.

An answer reads `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. It is shown as other
models write theirs: thoughts between `<think>` and `</think>`, then the answer. Templates want the two apart again.
Source: OpenAI, "OpenAI harmony response format".
"""

CHANNEL, START, MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
BEFORE_THOUGHTS, AFTER_THOUGHTS = "<think>\n", "\n</think>\n\n"


class Headers:
    """Follows the control tokens of one answer.

    is_open : bool        plain text now names a role or a channel and is not part of the answer
    """

    def __init__(self):
        self.is_open = self._has_channels = self._is_thinking = False
        self._name = b""

    def name(self, data):
        """Bytes of plain text while a header is open."""
        self._name += data

    def control(self, text):
        """The text of a control token; returns what is to be shown in its place."""
        if text == CHANNEL or (text == START and self._has_channels):
            self.is_open = self._has_channels = True
            self._name = b""
        elif text == MESSAGE and self.is_open:
            self.is_open = False
            was_thinking, self._is_thinking = self._is_thinking, self._name.split()[:1] == [b"analysis"]
            if self._is_thinking != was_thinking:
                return AFTER_THOUGHTS if was_thinking else BEFORE_THOUGHTS
        return ""


def with_thoughts_apart(message):
    """A message whose content begins with thoughts, as `Headers` shows them, with these as "thinking" instead; others as they are."""
    content = message.get("content")
    if message.get("role") != "assistant" or "thinking" in message or not isinstance(content, str):
        return message
    if not content.startswith(BEFORE_THOUGHTS):
        return message
    thinking, _, rest = content.removeprefix(BEFORE_THOUGHTS).partition(AFTER_THOUGHTS)
    return {**message, "content": rest, "thinking": thinking}
