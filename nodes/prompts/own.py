"""An app's own prompts: LangChain templates in place of hopgate's (docs/prompts.md)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.prompts import BasePromptTemplate

AnswerPrompt = Literal["answer", "answer_with_passages"]
PromptName = AnswerPrompt | Literal["gate", "condense", "reason", "decompose"]


# Those that a prompt needs, and those that it may leave out.
FIELDS: dict[PromptName, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "answer": (("question",), ("history", "instructions")),
    "answer_with_passages": (("question", "passages"), ("history", "instructions")),
    "gate": (("question",), ("today",)),
    "condense": (("question", "conversation"), ()),
    "reason": (("question", "passages"), ("reasoning",)),
    "decompose": (("question",), ("limit",)),
}


def check_prompts(given: Mapping[Any, Any]) -> None:
    """Check an app's prompts.

    Raises:
        ValueError: A name is unknown, a value is not a LangChain prompt template, or a template
            lacks a field that it needs or has one that hopgate does not fill.
    """
    from langchain_core.prompts import BasePromptTemplate

    for name, template in given.items():
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise ValueError(f"prompts has no prompt {name!r}; use {known}")
        if not isinstance(template, BasePromptTemplate):
            raise ValueError(
                f"prompts[{name!r}] is a {type(template).__name__}; use a LangChain prompt "
                "template, such as ChatPromptTemplate.from_messages([…])"
            )
        needed, optional = FIELDS[name]
        used = {*template.input_variables, *template.optional_variables}
        if not used.issuperset(needed) or not used.issubset(needed + optional):
            may = f"; it may have {', '.join(optional)}" if optional else ""
            raise ValueError(
                f"prompts[{name!r}] has the fields {', '.join(sorted(used)) or 'none'}; it needs "
                f"{', '.join(needed)}{may}; write {{{{ and }}}} for braces"
            )


def fill(template: "BasePromptTemplate[Any]", **fields: Any) -> "list[BaseMessage]":
    """Return a template's messages.

    Instructions that the template does not use become part of its system message, so that an app's
    and a client's words are never lost.
    """
    from langchain_core.messages import SystemMessage

    messages = template.invoke(fields).to_messages()
    used = {*template.input_variables, *template.optional_variables}
    instructions = fields.get("instructions", "")
    if not instructions or "instructions" in used:
        return [_stripped(each) for each in messages]
    if messages and isinstance(messages[0], SystemMessage):
        both = SystemMessage(f"{messages[0].text}\n\n{instructions}")
        return [both, *messages[1:]]
    return [SystemMessage(instructions), *messages]


def _stripped(message: "BaseMessage") -> "BaseMessage":
    """Return a message without the blank lines that an empty field leaves at its end."""
    if message.type != "system":
        return message
    return message.model_copy(update={"content": message.text.strip()})
