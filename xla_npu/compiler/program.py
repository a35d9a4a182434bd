"""From the bytes JAX hands over to a flat StableHLO module."""

from __future__ import annotations

import io
import re
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

from xla_npu.compiler.attributes import QUANTISED
from xla_npu.compiler.errors import InvalidProgram, Unsupported

# After so many programs, or so many bytes of them, the context is renewed.
_CONTEXT_PROGRAMS = 200
_CONTEXT_BYTES = 64 << 20


_QUANTISED = re.compile(r'(\d+:\d+): `!"quant"<"(.*?)">`')


class Parser:
    """Parses programs in one MLIR context, renewed now and then: a context never forgets a constant."""

    def __init__(self) -> None:
        self._context: ir.Context | None = None
        self._used = self._bytes = 0
        stablehlo.register_stablehlo_passes()

    def context(self, size: int) -> ir.Context:
        """The context for the next program, of `size` bytes."""
        if self._context is None or self._used >= _CONTEXT_PROGRAMS or self._bytes >= _CONTEXT_BYTES:
            registry = ir.DialectRegistry()
            _jax_mlir_ext.register_dialects(registry)
            context = ir.Context()
            context.append_dialect_registry(registry)
            context.load_all_available_dialects()
            for dialect in (stablehlo, chlo, sdy):
                dialect.register_dialect(context)
            self._context, self._used, self._bytes = context, 0, 0
        self._used += 1
        self._bytes += size
        return self._context

    def parse(self, code: bytes) -> ir.Module:
        """The module of a portable artifact (what JAX sends), or of MLIR text or bytecode.

        Raises:
            InvalidProgram: the bytes are no such program.
        """
        context = self.context(len(code))
        context.enable_multithreading(False)
        try:
            with context:
                if b"StableHLO_v" in code[:64]:
                    return stablehlo.deserialize_portable_artifact(context, code)
                return ir.Module.parse(code)
        except (ir.MLIRError, ValueError) as error:
            if (quantised := _QUANTISED.search(str(error))) is not None:
                place, name = quantised.groups()
                raise Unsupported(f"line and column {place}: !quant.{name} {QUANTISED}") from error
            raise InvalidProgram(
                f"the program is not StableHLO that this jaxlib ({stablehlo.get_current_version()}) can read: {error}"
            ) from error


def without_places(module: ir.Module) -> bytes:
    """The module's bytecode without places in the user's program: it stays the same when lines are moved."""
    with module.context:
        bare = module.operation.clone()
        PassManager.parse("builtin.module(strip-debuginfo)").run(bare)
    buffer = io.BytesIO()
    bare.write_bytecode(buffer)
    return buffer.getvalue()


def run_passes(module: ir.Module, pipeline: str, *, verified: bool = True) -> None:
    """Runs a pass pipeline on the module in place. `verified`: the module has to be valid after each pass.

    Raises:
        Unsupported: a pass failed; the message is MLIR's.
    """
    try:
        with module.context:
            manager = PassManager.parse(f"builtin.module({pipeline})")
            manager.enable_verifier(verified)
            manager.run(module.operation)
    except ir.MLIRError as error:
        details = [str(d.message) for d in getattr(error, "error_diagnostics", [])]
        raise Unsupported("; ".join(details) or f"MLIR pass failed: {error}") from error


def inline_calls(module: ir.Module) -> None:
    """Replaces every call in `main` by the function's body. MLIR's own pass cannot: jaxlib leaves out its extension."""
    functions = {}
    for op in module.body.operations:
        if op.operation.name == "func.func":
            functions[ir.StringAttr(op.operation.attributes["sym_name"]).value] = op.operation

    def visit(block: ir.Block) -> None:
        for op in list(block.operations):
            operation = op.operation
            if operation.name == "func.call":
                callee = functions[ir.FlatSymbolRefAttr(operation.attributes["callee"]).value]
                with ir.InsertionPoint(op), operation.location:
                    results = _jax_mlir_ext.inlined_func_call(callee, list(operation.operands))
                for old, new in zip(operation.results, results, strict=True):
                    old.replace_all_uses_with(new)
                operation.erase()
            else:
                for region in operation.regions:
                    for inner in region.blocks:
                        visit(inner)

    # Callees first, so that what is inlined has no calls left.
    done: set[str] = set()

    def finish(name: str) -> None:
        if name in done:
            return
        done.add(name)
        for called in _calls(functions[name]):
            finish(called)
        for block in functions[name].regions[0].blocks:
            visit(block)

    finish("main")
    kept = {"main", *_computations(functions["main"])}
    for name, function in functions.items():
        if name not in kept:
            function.erase()


def _computations(main: Any) -> list[str]:
    """The functions that custom calls name, such as a comparison."""
    names: list[str] = []

    def visit(op: Any) -> ir.WalkResult:
        if "called_computations" in op.attributes:
            called = ir.ArrayAttr(op.attributes["called_computations"])
            names.extend(ir.FlatSymbolRefAttr(name).value for name in called)
        return ir.WalkResult.ADVANCE

    main.walk(visit)
    return names


def _calls(function: Any) -> list[str]:
    names: list[str] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name == "func.call":
            names.append(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return names


def resolve_composites(module: ir.Module, code: bytes) -> None:
    """Composites become calls of their decomposition, as far as the program's bytes mention any."""
    if b"composite" in code:
        run_passes(module, "func.func(stablehlo-legalize-composite-to-call)")


def expand(module: ir.Module) -> None:
    """Rewrites what has no rule: CHLO operations in StableHLO, complex functions in real ones."""
    run_passes(
        module, "func.func(chlo-legalize-to-stablehlo,stablehlo-complex-math-expander),symbol-dce,canonicalize,cse"
    )
