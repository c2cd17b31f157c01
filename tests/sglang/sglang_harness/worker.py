"""A process that is one engine rank after another: commands as JSON lines on stdin, answers as JSON lines on
stdout.

Importing SGLang takes many seconds; a worker pays for it once and then runs any number of cases.
"""

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


def main() -> int:
    """Serves commands until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what SGLang prints belongs to the log, not between the answers
    import logging

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    warm_up()
    replies.write(json.dumps({"ready": True}) + "\n")
    serve(sys.stdin, replies)
    return 0


def warm_up() -> None:
    """Imports SGLang and has it compile its hash extension (once a machine), so that commands are quick."""
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    import sglang_harness.engine  # noqa: F401

    get_storage_hash_str(list(range(16)), None, page_size=16)


def serve(commands: TextIO, replies: TextIO) -> None:
    """One answer a command; an exception is an answer too."""
    from sglang_harness.case import Case

    for line in commands:
        command = json.loads(line)
        try:
            verb = VERBS[command["verb"]]
            answer = verb(Case.from_json(command["case"]), **command.get("more", {}))
        except Exception:
            answer = {"error": traceback.format_exc()}
        replies.write(json.dumps(answer) + "\n")


def write(case: Any) -> dict[str, Any]:
    """Fills pages and backs them up."""
    from sglang_harness.engine import Engine
    from sglang_harness.prompts import write_prompt

    with Engine(case) as engine:
        written = write_prompt(engine)
        return {
            "hashes": written.hashes,
            "stored_tokens": written.stored_tokens,
            "side_digests": {
                name: {str(end): [_digest(page) for page in pages] for end, pages in by_end.items()}
                for name, by_end in written.side_pages.items()
            },
            **_contents(engine, written.slots),
            **_report(engine),
        }


def read(case: Any) -> dict[str, Any]:
    """Prefetches the same prompt into other slots of a pool that starts empty."""
    from sglang_harness.engine import Engine
    from sglang_harness.prompts import read_prompt

    with Engine(case) as engine:
        got, side_pages = read_prompt(engine)
        contents = {"digests": []} if got.host_indices is None else _contents(engine, got.host_indices)
        return {
            "hit_tokens": got.hit_tokens,
            "loaded_tokens": got.completed_tokens,
            "restorable": got.restorable,
            "side_digests": {name: [_digest(page) for page in pages] for name, pages in side_pages.items()},
            "side_pages": got.side_pages,
            **contents,
            **_report(engine),
        }


def load(case: Any, progress: str, stop: str, prompts_max: int) -> dict[str, Any]:
    """Writes and reads prompts until the file `stop` is there."""
    from sglang_harness.engine import Engine
    from sglang_harness.load import Load

    with Engine(case) as engine:
        report = Load(engine, Path(progress), Path(stop), prompts_max).run()
        return {**report, **_report(engine)}


def verify(case: Any, stored_pages: dict[str, int]) -> dict[str, Any]:
    """Reads what a load has stored."""
    from sglang_harness.engine import Engine
    from sglang_harness.load import Load

    with Engine(case) as engine:
        nowhere = Path("/nonexistent")
        load = Load(engine, nowhere, nowhere, 0)
        return load.verify({int(number): pages for number, pages in stored_pages.items()})


def write_model(case: Any, ranks: list[dict[str, Any]], prompts: list[list[int]]) -> dict[str, Any]:
    """Each rank of an engine backs its part of the prompts up. `case`: the same model on one rank."""
    return {"stored_tokens": [[*answers] for answers in _each_rank("write_prompt", case, ranks, prompts)]}


def read_model(case: Any, ranks: list[dict[str, Any]], prompts: list[list[int]]) -> dict[str, Any]:
    """Each rank of an engine loads its part of the prompts; what is wrong, by rank and prompt. `case` as in write_model."""
    return {"wrong": [[*answers] for answers in _each_rank("read_prompt", case, ranks, prompts)]}


def _each_rank(
    verb: str, model: Any, ranks: list[dict[str, Any]], prompts: list[list[int]]
) -> Iterator[list[Any]]:
    from sglang_harness import model_pages
    from sglang_harness.case import Case
    from sglang_harness.engine import Engine

    for rank in ranks:
        with Engine(Case.from_json(rank)) as engine:
            run = getattr(model_pages, verb)
            yield [run(engine, model_pages.Prompt(*prompt), model) for prompt in prompts]


VERBS = {
    "write": write,
    "read": read,
    "load": load,
    "verify": verify,
    "write_model": write_model,
    "read_model": read_model,
}


def _contents(engine: Any, slots: Any) -> dict[str, Any]:
    contents: dict[str, Any] = {"digests": [_digest(page) for page in engine.page_bytes(slots)]}
    if engine.case.layout == "page_head":
        contents["heads"] = [[_digest(head) for head in page] for page in engine.head_bytes(slots)]
    return contents


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _report(engine: Any) -> dict[str, Any]:
    backend = engine.backend
    return {"counters": backend.counters()} if hasattr(backend, "counters") else {}


if __name__ == "__main__":
    sys.exit(main())
