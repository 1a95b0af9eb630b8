"""The words around a question."""

# The sentence that the authors of both evaluated model families ask for: usage recommendations in
# the README of deepseek-ai/DeepSeek-R1, and "Best Practices" on the card of Qwen/Qwen3-8B.
MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def chat_messages(question: str, instruction: str, role: str) -> list[dict[str, str]]:
    """The chat that asks `question`; `role` (`user` or `system`) says the instruction.

    The authors of DeepSeek-R1-Distill advise `user`: no system prompt, all in the user turn.
    """
    if role == "system":
        return [
            {"role": "system", "content": instruction},
            {"role": "user", "content": question},
        ]
    return [{"role": "user", "content": f"{question}\n{instruction}"}]
