"""Runs witnesses on a copy of upstream: `python run.py UPSTREAM_FOLDER PACKAGE WITNESS...`.

Packages that are neither upstream nor of the standard library are stand-ins. The last line printed is JSON: by witness
the error it ended with, empty where it passed.
"""

import abc
import functools
import importlib.abc
import importlib.machinery
import json
import runpy
import sys
import types


class _Meta(abc.ABCMeta):
    """Classes that take whatever is done to them."""

    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _standin(f"{cls.__name__}.{name}")

    def __getitem__(cls, key):
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())

    def __len__(cls):
        return 0

    def __lt__(cls, other):
        return False

    __le__ = __gt__ = __ge__ = __lt__


class _Any:
    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _standin(name)()

    def __call__(self, *args, **kwargs):
        # As a decorator it gives back what it decorates.
        return _decorated(args[0]) if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __iter__(self):
        return iter(())

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def __bool__(self):
        return False

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other

    def __lt__(self, other):
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def _same(self, *args):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __pow__ = __or__ = __ror__ = _same
    __and__ = __neg__ = __getitem__ = _same


class _Decorated(_Any):
    """A function with what its decorator adds to it, such as `register_fake`."""

    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)

    def __get__(self, owner, cls=None):
        return self if owner is None else types.MethodType(self, owner)


def _decorated(thing):
    return _Decorated(thing) if isinstance(thing, types.FunctionType) else thing


def _standin(name):
    return _Meta(name.rpartition(".")[2], (_Any,), {"__module__": "standin"})


class _Module(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        # Functions used as decorators without arguments and classes used as bases: a class is both.
        made = _Decorator(name, (_Any,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Decorator(_Meta):
    def __call__(cls, *args, **kwargs):
        plain = len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, _Decorated))
        return _decorated(args[0]) if plain else super().__call__(*args, **kwargs)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, upstream):
        self._upstream = upstream

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == self._upstream or top in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def main(folder, upstream, *witnesses):
    sys.meta_path.insert(0, _Finder(upstream))
    sys.path.insert(0, folder)
    results = {}
    for witness in witnesses:
        try:
            runpy.run_path(witness)
            results[witness] = ""
        except BaseException as error:  # whatever it is, the witness failed
            results[witness] = f"{type(error).__name__}: {error}"[:300]
    sys.stdout.flush()
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
