"""The verb ``doctor``: what is installed, what becomes of each patch, what a command would get."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from . import __version__, compat, doors, envs, probe, report

TROUBLE = (report.DRIFT, report.FAILED)
USAGE = 2
#: Printed by the child before its answer: vLLM writes to stdout, too.
_MARK = "vllm-tpu-async-patch doctor: "


def node_report() -> dict[str, Any]:
    """What can be told about this interpreter without importing vLLM; the same on every node."""
    versions, verdict = compat.installed(), compat.verdict()
    row = verdict.row
    found = probe.installed_source().facts(row.expected) if row else {}
    return {
        "version": __version__,
        "python": sys.version.split()[0],
        "distribution": versions.distribution or None,
        "vllm": versions.vllm,
        "tpu_inference": versions.tpu_inference,
        "action": verdict.action,
        "reason": verdict.reason,
        "row": row.vllm if row else None,
        "facts": [{"fact": name, "expected": expected, "found": found.get(name)}
                  for name, expected in (row.expected.items() if row else ())],
    }


def toggle() -> dict[str, Any]:
    """The toggle's value, where it comes from, and whether it lets the patch in."""
    value = os.environ.get(envs.TOGGLE.name)
    return {"value": value, "source": "unset" if value is None else "environment variable",
            "on": doors.wanted()}


def active_doors() -> list[dict[str, Any]]:
    """The ways in which vLLM would load this package, and whether each is open."""
    from importlib.metadata import entry_points

    allowed = os.environ.get("VLLM_PLUGINS")
    found = []
    for group in ("vllm.platform_plugins", "vllm.general_plugins"):
        ours = [e for e in entry_points(group=group) if e.value.startswith(f"{__package__}.")]
        name = ours[0].name if ours else None
        if name is None:
            why = "the distribution is not installed in this interpreter"
        elif allowed is not None and name not in allowed.split(","):
            why = f"VLLM_PLUGINS={allowed!r} leaves {name} out"
        else:
            why = "" if doors.wanted() else f"{envs.TOGGLE.name} is not on"
        found.append({"door": group, "open": not why, "reason": why})
    return found


def diagnose(command: list[str], ray_address: str | None) -> dict[str, Any]:
    """Everything that the verb reports.

    The states of the patches are those of a process that imports all they touch; where the toggle
    is unset, they are what setting it would bring.

    Args:
        command: arguments of ``vllm serve``, or empty.
        ray_address: the cluster whose nodes are to be asked, or None.
    """
    answer = node_report()
    answer["toggle"], answer["doors"] = toggle(), active_doors()
    answer["patches"] = _child(["--patches"], dict(os.environ))["patches"]
    if command:
        # Importing the package applies it; the command gets it only through an open door.
        environment = {**os.environ, **({} if doors.wanted() else {envs.TOGGLE.name: "0"})}
        answer["command"] = _child(["--command", *command], environment)
    if ray_address is not None:
        answer["nodes"] = _nodes(ray_address, answer)
    answer["problems"] = problems(answer)
    return answer


def problems(answer: dict[str, Any]) -> list[str]:
    """What is not as it should be, in sentences; empty where all is well."""
    found = []
    if answer["action"] == compat.DRIFT:
        found.append(answer["reason"])
    else:
        found += [f"{patch['name']}: {patch['state']}: {patch['reason']}"
                  for patch in answer["patches"] if patch["state"] in TROUBLE]
        if answer["toggle"]["on"] and answer["action"] in (compat.UNKNOWN, compat.REFUSE):
            found.append(answer["reason"])
    command = answer.get("command")
    if command and (command.get("error") or (
            command["requested"] == "on" and command["effective"] != "on")):
        found.append(f"async scheduling is asked for and not effective: {command['reason']}")
    for node in answer.get("nodes", ()):
        found += [f"node {node['node']}: {difference}" for difference in node["differences"]]
    return found


def _child(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    # Importing vLLM logs, takes seconds, and cannot be undone: it happens in another process.
    done = subprocess.run([sys.executable, "-m", f"{__package__}.doctor_child", *arguments],
                          env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return answer
    raise RuntimeError(f"the inspection failed (exit code {done.returncode}):\n"
                       f"{done.stderr[-2000:]}")


def _nodes(address: str, here: dict[str, Any]) -> list[dict[str, Any]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def ask() -> dict[str, Any]:  # nested, so that it travels by value: the package may be missing
        try:
            from vllm_tpu_async_patch.doctor import node_report
        except ImportError as error:
            return {"error": f"vllm-tpu-async-patch cannot be imported: {error}"}
        return node_report()

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        asked = []
        for node in ray.nodes():
            if node["Alive"]:
                where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                task = ray.remote(num_cpus=0, scheduling_strategy=where)(ask)
                asked.append((node["NodeManagerAddress"], node["NodeID"], task.remote()))
        return [_compared(here, address, node_id, ref) for address, node_id, ref in asked]
    finally:
        ray.shutdown()


def _compared(here: dict[str, Any], address: str, node_id: str, ref: Any) -> dict[str, Any]:
    import ray

    try:
        there = ray.get(ref, timeout=120)
    except Exception as error:
        there = {"error": f"does not answer: {error}"}
    return {"node": address, "id": node_id, **there, "differences": differences(here, there)}


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """In what another node is not like this one, in sentences."""
    if "error" in there:
        return [there["error"]]
    found = [f"{key} is {there[key]!r}, here {here[key]!r}"
             for key in ("version", "python", "distribution", "vllm", "tpu_inference", "action",
                         "row") if there[key] != here[key]]
    mine = {fact["fact"]: fact["found"] for fact in here["facts"]}
    found += [f"{fact['fact']} is {fact['found']!r}, here {mine[fact['fact']]!r}"
              for fact in there["facts"] if mine.get(fact["fact"], fact["found"]) != fact["found"]]
    return found


def as_text(answer: dict[str, Any]) -> str:
    """The report for a terminal."""
    switch = answer["toggle"]
    lines = [
        f"vllm-tpu-async-patch {answer['version']}, Python {answer['python']}",
        f"{answer['distribution'] or 'vllm'} {answer['vllm']}, tpu-inference "
        f"{answer['tpu_inference']}",
        f"toggle  {envs.TOGGLE.name}={switch['value'] or ''} ({switch['source']}): "
        f"{'on' if switch['on'] else 'off'}",
        *(f"door    {door['door']}: {'open' if door['open'] else 'closed, ' + door['reason']}"
          for door in answer["doors"]),
        f"release {answer['row'] or 'not in the table'}: {answer['action']}: {answer['reason']}",
        *(f"fact    {fact['fact']}: {fact['found']}" + (
            "" if fact["found"] == fact["expected"] else f"  EXPECTED {fact['expected']}")
          for fact in answer["facts"]),
        *(f"patch   {patch['name']}: {patch['state']}" + (
            f" ({patch['reason']})" if patch["reason"] else "") for patch in answer["patches"])]
    command = answer.get("command")
    if command:
        lines.append(f"command async scheduling requested={command['requested']} "
                     f"effective={command['effective']} executor={command['executor']}: "
                     f"{command['reason']}")
    lines += [f"node    {node['node']}: "
              + ("; ".join(f"DIFFERS: {d}" for d in node["differences"]) or "like this one")
              for node in answer.get("nodes", ())]
    lines += [f"PROBLEM {problem}" for problem in answer["problems"]] or ["no problem found"]
    return "\n".join(lines) + "\n"


def serve_arguments(command: list[str]) -> list[str] | None:
    """The arguments of ``vllm serve`` in a command line, or None where it is another command."""
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        return []
    if len(words) > 1 and os.path.basename(words[0]) == "vllm" and words[1] == "serve":
        return words[2:]
    return None


def run(args: argparse.Namespace) -> int:
    """The verb ``doctor``.  0: fine; 1: async scheduling asked for and not effective, or drift."""
    command = serve_arguments(args.command_line)
    if command is None or (args.command_line[1:] and not command):
        print("usage: vllm-tpu-async-patch doctor [--json] [--ray ADDRESS] "
              "[-- vllm serve MODEL ...]", file=sys.stderr)
        return USAGE
    answer = diagnose(command, args.ray)
    if args.json:
        json.dump(answer, sys.stdout, indent=2)
        print()
    else:
        sys.stdout.write(as_text(answer))
    return 1 if answer["problems"] else 0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = commands.add_parser(
        "doctor", help="what is installed, what becomes of each patch, what a command would get")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--ray", metavar="ADDRESS",
                        help="ask every node of this Ray cluster, too")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- vllm serve ...",
                        help="say what this command would get")
    parser.set_defaults(run=run)
