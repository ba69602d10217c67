"""Published chat templates rendered by Troupe and by jinja2 with transformers' settings: with tools and without, byte for byte, errors together.

usage: python tests/soak/published_templates.py BUILD_FOLDER TEMPLATES     (needs jinja2 from PyPI). TEMPLATES: a folder of *.jinja files, such as
vendor/llama.cpp/models/templates in the source package of PyPI's llama-cpp-python. Exits 1 where something differs.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja_differential

CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2, "units": ["C", "F"], "deep": {"a": None, "b": True, "c": 1.5}}}}
TEXT_CALL = {**CALL, "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a city.\nSecond line.", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "its name"}, "days": {"type": "integer", "description": "how many", "default": 1},
        "units": {"type": "array", "items": {"type": "string", "enum": ["C", "F"]}}, "exact": {"type": ["boolean", "null"], "nullable": True},
        "deep": {"type": "object", "properties": {"x": {"type": "number", "description": "a <number> & \"more\""}}, "required": ["x"]}}, "required": ["city"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]
CONVERSATIONS = {
    "user": [{"role": "user", "content": "Hello, wörld! 日本 🎉"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi\n\nthere  "}],
    "turns": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1\n"}, {"role": "user", "content": "Q2"}, {"role": "assistant", "content": " A2"}],
    "think": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA1"}, {"role": "user", "content": "Q2"}],
    "reasoning": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1", "reasoning_content": "why\nnot", "thinking": "why"}, {"role": "user", "content": "Q2 /no_think"}],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "S"}]}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "image": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}],
    "calls": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": '{"t": 20}'},
              {"role": "assistant", "content": "It is 20."}, {"role": "user", "content": "Thanks"}],
    "text calls": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": [TEXT_CALL]}, {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "20"}],
    "two calls": [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "Let me see.", "reasoning_content": "two", "tool_calls": [CALL, {**CALL, "id": "call00002"}]},
                  {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "20"}, {"role": "tool", "name": "weather", "tool_call_id": "call00002", "content": "21"}],
    "developer": [{"role": "developer", "content": "D"}, {"role": "user", "content": "Q"}],
    "assistant first": [{"role": "assistant", "content": "A"}, {"role": "user", "content": "Q"}],
    "two users": [{"role": "user", "content": "Q1"}, {"role": "user", "content": "Q2"}],
    "empty": [],
    "numbers": [{"role": "user", "content": "1 < 2 && 3 > 2 \"quoted\" 'single' \\ back\tslash </s> {{ x }}"}],
}
EXTRAS = [{}, {"enable_thinking": True}, {"enable_thinking": False, "reasoning_effort": "high", "thinking": False, "keep_past_thinking": True}, {"documents": [{"title": "T", "text": "body", "content": "body"}], "thinking": True, "date_string": "26 Jul 2024"}]


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant wrote; the text is as without it."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def main():
    build, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    env = jinja_differential.environment()
    env.add_extension(Generation)
    cases, errors, counts = [], 0, {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        if "strftime_now" in source:
            source = source.replace("strftime_now", "fixed_now")  # one clock for both
        prelude = "{% macro fixed_now(form) %}{{ '26 Jul 2024' if form == '%d %B %Y' or form == '%d %b %Y' else '2024-07-26' }}{% endmacro %}"
        whole = prelude + source if "fixed_now" in source else source
        try:
            compiled, trouble = env.from_string(whole), None
        except jinja2.TemplateError as error:
            compiled, trouble = None, error
        for name, messages in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                for generation in (True, False):
                    for extra in EXTRAS:
                        variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": generation, "bos_token": "<s>", "eos_token": "</s>",
                                     "unk_token": "<unk>", "pad_token": "<pad>", **extra}
                        case = {"template": whole, "name": f"{path.name}: {name}, tools {tools is not None}, prompt {generation}, {extra}", "variables": variables}
                        try:
                            if trouble is not None:
                                raise trouble
                            case["text"] = compiled.render(**variables)
                        except Exception as error:
                            case["error"], errors = f"{type(error).__name__}: {error}", errors + 1
                        cases.append(case)
                        counts[path.name] = counts.get(path.name, 0) + ("text" in case)
    tests = next(path for path in (build / "bin/troupe-tests", build / "bin/troupe-tests-models") if path.exists())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"cases": cases}, file)
        file.flush()
        result = subprocess.run([tests, "--no-skip", "--test-case=templates of TROUPE_JINJA_CASES"], env={**os.environ, "TROUPE_JINJA_CASES": file.name}, capture_output=True, text=True, timeout=1800)
    print(result.stdout[-20000:])
    print(f"jinja2 {jinja2.__version__}: {len(counts)} templates, {len(cases)} renderings, {errors} of them errors; never rendered: {[name for name, count in counts.items() if count == 0]}")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
