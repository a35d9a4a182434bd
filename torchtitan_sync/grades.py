"""Which kind of finding gets which grade: the one table, for the code, the report and the documentation."""

from dataclasses import dataclass

from torchtitan_sync.model import Grade

P0, P1, P2, P3, P4 = Grade.P0, Grade.P1, Grade.P2, Grade.P3, Grade.P4


@dataclass(frozen=True)
class Kind:
    grade: Grade
    title: str
    """A phrase for tables."""
    why: str
    """What happens downstream."""


TABLE = {
    # Will raise at import, at construction or on the first call
    "module-moved": Kind(P0, "module moved", "ModuleNotFoundError at import"),
    "module-removed": Kind(P0, "module removed", "ModuleNotFoundError at import"),
    "symbol-moved": Kind(P0, "symbol moved or renamed", "ImportError or AttributeError"),
    "symbol-removed": Kind(P0, "symbol removed", "ImportError or AttributeError"),
    "attribute-moved": Kind(P0, "attribute or method renamed or moved", "AttributeError on first use"),
    "attribute-removed": Kind(P0, "attribute or method removed", "AttributeError on first use"),
    "field-moved": Kind(P0, "configuration field renamed or moved", "AttributeError, or a refused flag"),
    "field-removed": Kind(P0, "configuration field removed", "AttributeError, or a refused flag"),
    "parameter-renamed": Kind(P0, "parameter renamed", "TypeError: unexpected keyword"),
    "parameter-removed": Kind(P0, "parameter removed", "TypeError: unexpected keyword or too many arguments"),
    "parameter-required": Kind(P0, "new required parameter", "TypeError: missing argument"),
    "parameter-order": Kind(P0, "positional order changed", "arguments reach other parameters"),
    "return-arity": Kind(P0, "number of returned values changed", "ValueError where they are unpacked"),
    "key-removed": Kind(P0, "registry key or model name removed", "KeyError or ValueError"),
    "override-signature": Kind(P0, "upstream calls an override with arguments it does not take", "TypeError"),
    "callback-signature": Kind(P0, "upstream calls a callback with arguments it does not take", "TypeError"),
    "patch-signature": Kind(
        P0, "upstream calls a patched function with arguments the patch does not take", "TypeError"
    ),
    "patch-target-gone": Kind(P0, "patch target gone", "the patch has nothing to replace"),
    "abstract-method": Kind(P0, "new abstract method of an abstract base class", "TypeError at construction"),
    "silent": Kind(P0, "a patch, override or setting silently stops taking effect", "no error: upstream's code runs"),
    # Still resolves, but behaviour the plugin relies on changed
    "patched-changed": Kind(P1, "code that the plugin replaces changed", "the replacement lacks the change"),
    "overridden-changed": Kind(P1, "code that the plugin overrides changed", "the override lacks the change"),
    "wrapped-changed": Kind(P1, "code that the plugin wraps or extends changed", "other behaviour under the plugin's"),
    "copied-changed": Kind(P1, "code that the plugin has a copy of changed", "the copy lacks the change"),
    "return-changed": Kind(P1, "return type or structure changed", "callers may read it wrongly"),
    "raises-changed": Kind(P1, "raises another exception", "the plugin's `except` no longer matches"),
    "guarded-missing": Kind(P1, "gone, but the plugin handles its absence", "the other branch runs from now on"),
    "patch-by-value": Kind(P1, "a patched name is now imported by value elsewhere", "the patch may not reach it"),
    # Needs a look
    "typing-missing": Kind(P2, "gone, but only type checkers see it", "type checking fails; running does not"),
    "meaning": Kind(P2, "same name, other meaning", "cannot be decided from the source"),
    "default-changed": Kind(P2, "default changed", "another value where the plugin sets none"),
    "abstract-added": Kind(P2, "new method that subclasses are to implement", "NotImplementedError if it is reached"),
    "used-changed": Kind(P2, "code that the plugin calls changed", "other behaviour possible"),
    "touched": Kind(P2, "a module that the plugin uses changed elsewhere", "usually nothing"),
    "deprecated": Kind(P2, "deprecated", "will be removed"),
    "dependency": Kind(P2, "dependency changed", "environment needs the new bounds"),
    "third-party": Kind(P2, "upstream imports another package", "ModuleNotFoundError where it is not installed"),
    "witness-failed": Kind(P2, "break that could not be shown", "the witness did not behave as predicted"),
    # For information
    "model-added": Kind(P3, "new model", ""),
    "model-changed": Kind(P3, "model changed", ""),
    "model-removed": Kind(P3, "model removed", ""),
    "other": Kind(P4, "documentation, tests, CI", ""),
}


def grade(kind: str) -> Grade:
    return TABLE[kind].grade
