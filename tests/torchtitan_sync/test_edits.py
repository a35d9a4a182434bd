"""Moves and renames in one file: what changes, what stays, and what is left to a person."""

import textwrap

import pytest

from torchtitan_sync.edits import Edit, Result, apply
from torchtitan_sync.model import Rename, Use

# Modules of the new upstream; everything behind one is a name in it.
MODULES = ("up.config.job", "up.new.tools", "up.new", "up.trainer", "up.layers", "up.other", "up")


def split(dotted: str) -> tuple[str, str]:
    module = next(m for m in MODULES if dotted == m or dotted.startswith(f"{m}."))
    return module, dotted[len(module) + 1 :]


def adapt(source: str, *renames: tuple[str, str, str, str], keep: frozenset[str] = frozenset()) -> Result:
    """Apply renames (what, old, new, text marked in the source: the first one of it that is not used yet)."""
    source = textwrap.dedent(source)
    edits, start = [], 0
    for what, old, new, marked in renames:
        start = source.index(marked, start)
        line = source.count("\n", 0, start) + 1
        column = start - (source.rfind("\n", 0, start) + 1)
        edits.append(Edit(Use("f.py", line, column, column + len(marked)), Rename(what, old, new)))
        start += len(marked)
    return apply(source.encode(), edits, split, keep)


def check(result: Result, expected: str) -> None:
    assert result.refused == []
    assert result.source.decode() == textwrap.dedent(expected)


def test_import_of_a_moved_symbol_moves() -> None:
    result = adapt("from up.old import func  # why\n", ("symbol", "up.old.func", "up.new.func", "func"))
    check(result, "from up.new import func  # why\n")


def test_names_that_part_ways_get_an_import_each_and_keep_comments() -> None:
    result = adapt(
        """\
        if True:
            # Kept.
            from up.old import (
                alpha,  # of alpha
                beta,
                gamma as g,  # of gamma
            )  # end
        """,
        ("symbol", "up.old.beta", "up.new.beta", "beta"),
        ("symbol", "up.old.gamma", "up.other.delta", "gamma"),
    )
    expected = """\
        if True:
            # Kept.
            from up.old import (
                alpha,  # of alpha
            )  # end
            from up.new import beta
            from up.other import delta as g  # of gamma
        """
    check(result, expected)


def test_statements_on_one_line_stay_on_one_line() -> None:
    source = "import os; from up.old import a1, b1; x = a1\n"
    result = adapt(source, ("symbol", "up.old.b1", "up.new.b1", "b1"))
    check(result, "import os; from up.old import a1; from up.new import b1; x = a1\n")


def test_uses_of_a_renamed_import_follow_it() -> None:
    result = adapt(
        """\
        from up.old import Old

        def f(x: Old) -> None:
            Old.make(x)
            x.Old = Old
        """,
        ("symbol", "up.old.Old", "up.new.New", "Old"),
    )
    expected = """\
        from up.new import New

        def f(x: New) -> None:
            New.make(x)
            x.Old = New
        """
    check(result, expected)


@pytest.mark.parametrize(
    ("rest", "keep"),
    [
        ("New = 1", frozenset()),
        ('__all__ = ["Old"]', frozenset()),
        ('x: "Old | None" = None', frozenset()),
        ("x = Old", frozenset({"Old"})),
    ],
    ids=["new name is taken", "exported", "quoted", "imported elsewhere"],
)
def test_old_name_stays_as_an_alias_where_renaming_is_unsafe(rest: str, keep: frozenset[str]) -> None:
    result = adapt(f"from up.old import Old\n{rest}\n", ("symbol", "up.old.Old", "up.new.New", "Old"), keep=keep)
    check(result, f"from up.new import New as Old\n{rest}\n")


def test_whole_module_moves() -> None:
    result = adapt(
        """\
        import up.old.tools
        import up.old.tools as tools
        from up.old.tools import a1, b1 as b
        from up.old import tools as t2, rest

        up.old.tools.f(tools.g, t2.h)
        """,
        ("module", "up.old.tools", "up.new.tools", "up.old.tools"),
        ("module", "up.old.tools", "up.new.tools", "up.old.tools"),
        ("module", "up.old.tools", "up.new.tools", "up.old.tools"),
        ("module", "up.old.tools", "up.new.tools", "tools"),
    )
    expected = """\
        import up.new.tools
        import up.new.tools as tools
        from up.new.tools import a1, b1 as b
        from up.old import rest
        from up.new import tools as t2

        up.new.tools.f(tools.g, t2.h)
        """
    check(result, expected)


def test_symbol_reached_through_a_module_is_reached_through_its_new_one() -> None:
    result = adapt(
        """\
        \"\"\"Doc.\"\"\"
        from up import old
        import up.other as other

        old.func(1)
        old.value
        old.stays
        """,
        ("symbol", "up.old.func", "up.new.func2", "func"),
        ("symbol", "up.old.value", "up.other.value", "value"),
    )
    expected = """\
        \"\"\"Doc.\"\"\"
        from up import old
        import up.other as other
        from up.new import func2

        func2(1)
        other.value
        old.stays
        """
    check(result, expected)


def test_symbol_behind_a_module_that_moves_too_only_gets_its_name() -> None:
    result = adapt(
        "import up.old as o\nfrom up.layers import n1\no.func(o.keep)\n",
        ("module", "up.old", "up.new", "up.old"),
        ("symbol", "up.old.func", "up.new.func2", "func"),
    )
    check(result, "import up.new as o\nfrom up.layers import n1\no.func2(o.keep)\n")


def test_dotted_strings_move_also_through_a_re_export() -> None:
    result = adapt(
        """\
        mock.patch("up.old.tools.func", f)
        mock.patch('up.func.__name__', f)
        sys.modules["up.old.tools"] = x
        """,
        ("symbol", "up.old.tools.func", "up.new.tools.func", '"up.old.tools.func"'),
        ("symbol", "up.old.tools.func", "up.new.tools.func", "'up.func.__name__'"),
        ("module", "up.old.tools", "up.new.tools", '"up.old.tools"'),
    )
    expected = """\
        mock.patch("up.new.tools.func", f)
        mock.patch('up.new.tools.func.__name__', f)
        sys.modules["up.new.tools"] = x
        """
    check(result, expected)


def test_attributes_parameters_and_fields_are_renamed_where_they_are_used() -> None:
    result = adapt(
        """\
        x.seq_length(y.seq_length)  # seq_length
        f(seq_length=1)
        getattr(x, "seq_length")
        """,
        ("attribute", "up.C.seq_length", "up.C.seq_len", "seq_length"),
        ("field", "up.C.seq_length", "up.C.seq_len", "seq_length"),
    )
    result = adapt(
        result.source.decode(),
        ("parameter", "up.f.seq_length", "up.f.seq_len", "seq_length="[:-1]),
    )
    assert b"x.seq_len(y.seq_len)  # seq_length\n" in result.source
    source = 'f(seq_length=1)\ngetattr(x, "seq_length")\n'
    result = adapt(
        source,
        ("parameter", "up.f.seq_length", "up.f.seq_len", "seq_length"),
        ("attribute", "up.C.seq_length", "up.C.seq_len", '"seq_length"'),
    )
    check(result, 'f(seq_len=1)\ngetattr(x, "seq_len")\n')


def test_override_of_a_renamed_method_takes_its_callers_along() -> None:
    source = """\
        class C(Base):
            def old_step(self):
                super().old_step()
                return self.old_step
        """
    result = adapt(source, ("attribute", "up.Base.old_step", "up.Base.step", "old_step"))
    check(result, source.replace("old_step", "step"))
    result = adapt(source + "x.old_step()\n", ("attribute", "up.Base.old_step", "up.Base.step", "old_step"))
    assert "through other objects" in result.refused[0][1]


@pytest.mark.parametrize(
    ("source", "rename", "why"),
    [
        ("c.training.seq", ("field", "up.Training.seq", "up.Data.seq", "seq"), "in `up.Data` now"),
        ("from up.old import *\nf()\n", ("module", "up.old", "up.new", "up.old"), "import \\*"),
        ("from up.old import func", ("symbol", "up.old.func", "up.trainer.Trainer.func", "func"), "member of a class"),
        ('g("up." + "func")', ("symbol", "up.old.func", "up.new.func", '"func"'), "from parts"),
        ("x().func", ("symbol", "up.old.func", "up.new.func", "func"), "through a value"),
        ("def f(x):\n    return x\n", ("parameter", "up.f.x", "up.f.x_BLD", "x"), "has to be decided"),
    ],
)
def test_what_is_not_mechanical_is_refused_with_the_reason_and_left_as_it_is(
    source: str, rename: tuple[str, str, str, str], why: str
) -> None:
    result = adapt(source, rename)
    ((_, reason),) = result.refused
    assert why.replace("\\", "") in reason
    assert result.source.decode() == source


def test_taken_name_is_not_imported_over() -> None:
    source = "import up.old as o\nfunc = o.func\n"
    edit = Edit(Use("f.py", 2, 9, 13), Rename("symbol", "up.old.func", "up.new.func"))
    result = apply(source.encode(), [edit], split)
    assert "for something else" in result.refused[0][1]
    assert result.source.decode() == source


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "gbk"])
def test_line_endings_and_encodings_stay(newline: str, encoding: str) -> None:
    text = f"# -*- coding: {encoding} -*-\n# 说明\nfrom up.old import (func,\n    other)\nfunc()\n".replace(
        "\n", newline
    )
    edit = Edit(Use("f.py", 3, 20, 24), Rename("symbol", "up.old.func", "up.new.func"))
    result = apply(text.encode(encoding), [edit], split)
    expected = (
        f"# -*- coding: {encoding} -*-\n# 说明\nfrom up.old import (other)\nfrom up.new import func\nfunc()\n"
    ).replace("\n", newline)
    assert result.source.decode(encoding) == expected


def test_line_without_a_column_is_enough_where_one_name_fits() -> None:
    edit = Edit(Use("f.py", 1), Rename("attribute", "up.C.old", "up.C.new"))
    assert apply(b"x.old + y\n", [edit], split).source == b"x.new + y\n"
    assert apply(b"x.old + y.old\n", [edit], split).refused


def test_file_that_cannot_be_parsed_is_refused() -> None:
    edit = Edit(Use("f.py", 1), Rename("attribute", "up.C.old", "up.C.new"))
    assert "cannot be parsed" in apply(b"def (\n", [edit], split).refused[0][1]
