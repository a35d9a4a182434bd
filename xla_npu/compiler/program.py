"""From the bytes JAX hands over to a flat StableHLO module."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

from xla_npu.compiler.errors import InvalidProgram, Unsupported

# Composites become calls of their decomposition. Calls stay: the lowering follows them.
FLATTEN = "func.func(stablehlo-legalize-composite-to-call),symbol-dce,canonicalize,cse"
# After so many programs the context is renewed.
_CONTEXT_PROGRAMS = 200


class Parser:
    """Parses programs in one MLIR context, renewed now and then: a context never forgets a constant."""

    def __init__(self) -> None:
        self._context: ir.Context | None = None
        self._used = 0
        stablehlo.register_stablehlo_passes()

    def context(self) -> ir.Context:
        """The context for the next program."""
        if self._context is None or self._used >= _CONTEXT_PROGRAMS:
            registry = ir.DialectRegistry()
            _jax_mlir_ext.register_dialects(registry)
            context = ir.Context()
            context.append_dialect_registry(registry)
            context.load_all_available_dialects()
            for dialect in (stablehlo, chlo, sdy):
                dialect.register_dialect(context)
            self._context, self._used = context, 0
        self._used += 1
        return self._context

    def parse(self, code: bytes) -> ir.Module:
        """The module of a portable artifact (what JAX sends), or of MLIR text or bytecode.

        Raises:
            InvalidProgram: the bytes are no such program.
        """
        context = self.context()
        context.enable_multithreading(False)
        try:
            with context:
                if b"StableHLO_v" in code[:64]:
                    return stablehlo.deserialize_portable_artifact(context, code)
                return ir.Module.parse(code)
        except (ir.MLIRError, ValueError) as error:
            raise InvalidProgram(
                f"the program is not StableHLO that this jaxlib ({stablehlo.get_current_version()}) can read: {error}"
            ) from error


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Runs a pass pipeline on the module in place.

    Raises:
        Unsupported: a pass failed; the message is MLIR's.
    """
    try:
        with module.context:
            PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
    except ir.MLIRError as error:
        raise Unsupported(f"MLIR pass failed: {error}") from error


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
    for name, function in functions.items():
        if name != "main":
            function.erase()


def _calls(function: Any) -> list[str]:
    names: list[str] = []

    def visit(op: Any) -> ir.WalkResult:
        if op.name == "func.call":
            names.append(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return names


def flatten(module: ir.Module, lowered: frozenset[str]) -> None:
    """Replaces composites by calls, and expands operations without a rule in `lowered` that StableHLO can express."""
    run_passes(module, FLATTEN)
    names, complex_math = _survey(module)
    if any(name.startswith("chlo.") and name not in lowered for name in names) or complex_math:
        run_passes(module, "func.func(chlo-legalize-to-stablehlo)")
        if complex_math:
            run_passes(module, "func.func(stablehlo-complex-math-expander)")
        run_passes(module, "canonicalize,cse")


# Operations on complex numbers that are expanded into real ones; the others have rules.
_EXPANDED = frozenset(
    [
        "stablehlo.exponential",
        "stablehlo.exponential_minus_one",
        "stablehlo.log",
        "stablehlo.log_plus_one",
        "stablehlo.sqrt",
        "stablehlo.rsqrt",
        "stablehlo.cbrt",
        "stablehlo.tanh",
        "stablehlo.sine",
        "stablehlo.cosine",
        "stablehlo.tan",
        "stablehlo.power",
        "stablehlo.logistic",
        "stablehlo.atan2",
    ]
)


def _survey(module: ir.Module) -> tuple[set[str], bool]:
    """The names of all operations, and whether there is complex arithmetic that needs expanding."""
    names: set[str] = set()
    complex_math = False

    def visit(op: Any) -> ir.WalkResult:
        nonlocal complex_math
        name = op.name
        names.add(name)
        if (name in _EXPANDED or name.startswith("chlo.")) and op.operands and "complex<" in str(op.operands[0].type):
            complex_math = True
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return names, complex_math
