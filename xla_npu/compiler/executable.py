"""What the compiler hands to the plugin: models, the steps that run them, and a description of inputs and outputs."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 2
_HEADER = struct.Struct("<8sII32s")  # magic, version, header length, SHA-256 of the rest
_MAGIC = b"XLANPU\0\0"


@dataclass
class Executable:
    """A compiled program. Field names are the keys of the worker's reply.

    Attributes:
        inputs, outputs: {"dtype": XLA's name, "dims": [...], "value": which of the values it is, "sharding": serialised
            OpSharding in hex or None}.
        values: device buffers of the steps: inputs first, then outputs and intermediate ones.
        steps: what to run, in order.
        donation: [output, input] pairs that share memory.
        consumed: donated inputs whose memory no output can take, freed after the run.
        inspections: (key, serialised OpSharding) in hex, for JAX to be told how values of the program are spread.
        models: GE's compiled models.
    """

    name: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    values: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    num_replicas: int = 1
    num_partitions: int = 1
    device_assignment: list[list[int]] = field(default_factory=list)
    donation: list[list[int]] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    inspections: list[list[str]] = field(default_factory=list)
    cost: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    fingerprint: str = ""
    models: list[bytes] = field(default_factory=list, repr=False)

    def header(self) -> dict[str, Any]:
        """The reply's JSON header."""
        head = asdict(self)
        head["models"] = [{"size": len(model)} for model in self.models]
        return {"ok": True, **head}

    def to_bytes(self) -> bytes:
        """One blob with version and checksum."""
        head = json.dumps(self.header()).encode()
        body = head + b"".join(self.models)
        return _HEADER.pack(_MAGIC, FORMAT, len(head), hashlib.sha256(body).digest()) + body

    @classmethod
    def from_bytes(cls, blob: bytes) -> Executable:
        """The reverse of `to_bytes`.

        Raises:
            ValueError: another format or version, or damaged.
        """
        if len(blob) < _HEADER.size:
            raise ValueError("too short to be a compiled program")
        magic, version, length, digest = _HEADER.unpack_from(blob)
        body = blob[_HEADER.size :]
        if magic != _MAGIC or version != FORMAT:
            raise ValueError(f"not a compiled program of format {FORMAT}")
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("the compiled program is damaged: its checksum differs")
        head = json.loads(body[:length])
        head.pop("ok")
        models, at = [], length
        for model in head.pop("models"):
            models.append(body[at : at + model["size"]])
            at += model["size"]
        return cls(**head, models=models)
