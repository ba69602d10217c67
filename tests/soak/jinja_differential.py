"""Random templates rendered by Troupe and by jinja2 with transformers' settings: texts must be equal, and errors fall together.

usage: python tests/soak/jinja_differential.py [BUILD_FOLDER] [COUNT] [SEED]     (needs jinja2 from PyPI). Exits 1 where something differs.
"""

import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIABLES = json.loads((ROOT / "tests/models/data/jinja_cases.json").read_text())["variables"]
NUMBERS = ["n", "m", "f", "0", "1", "2", "-3", "7", "2.5", "0.1", "1e3", "10", "l[0]", "l|length", "t"]
TEXTS = ["s", "e", "'abc'", "'a b  c'", "'Über é'", "\"it's\"", "'x,y,,z'", "'<b>&'", "bos_token", "messages[0]['role']", "messages[1].content", "'%s-%d'", "'-a-'", "'12'"]
LISTS = ["l", "ls", "[1, 2, 3]", "['b', 'a']", "(1, 'x')", "[]", "range(4)", "floats", "users", "messages", "'a-b-c'.split('-')", "d.keys()|list", "[n, s, none]"]
DICTS = ["d", "users[0]", "nested", "{'a': 1, 'b': [2]}", "{}", "messages[2]"]
OTHERS = ["none", "true", "false", "undefinedx", "d.missing", "loop"]
TEXT_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "reverse", "list", "first", "last", "e", "string", "int", "float", "wordcount", "replace('a', 'Z')", "center(12)",
                "indent(2)", "indent(3, true)", "truncate(4)", "truncate(6, true, '..', 0)", "tojson", "urlencode", "default('q')", "default('q', true)", "wordwrap(5)", "wordwrap(9, false)", "striptags",
                "pprint", "batch(2)|list", "slice(2)|list", "join('+')", "unique|list", "sort|list", "max", "min"]
LIST_FILTERS = ["length", "first", "last", "list", "sort", "sort(reverse=true)", "unique|list", "reverse|list", "join(',')", "join", "sum", "max", "min", "tojson", "string", "map('string')|list", "select|list",
                "reject('none')|list", "select('number')|list", "batch(2, 0)|list", "slice(2)|list", "map('upper')|list", "selectattr('a')|list", "map(attribute='n')|list", "tojson(indent=2)", "pprint",
                "groupby('g')", "rejectattr('role', 'equalto', 'user')|list", "map(attribute='role', default='?')|join('/')", "random|length"]
DICT_FILTERS = ["length", "list", "items|list", "dictsort", "dictsort(true)", "dictsort(false, 'value')", "tojson", "string", "first", "join(',')", "tojson(sort_keys=true)", "pprint", "xmlattr", "map('upper')|list"]
NUMBER_FILTERS = ["abs", "int", "float", "round", "round(1)", "round(1, 'floor')", "round(0, 'ceil')", "string", "tojson", "filesizeformat", "default(3)", "length", "pprint", "format"]
METHODS = ["upper()", "strip()", "split()", "split(',')", "startswith('a')", "endswith('c')", "find('b')", "count('a')", "replace('a', 'b', 1)", "title()", "isdigit()", "lstrip('ax')", "rsplit(' ', 1)", "splitlines()",
           "zfill(6)", "ljust(5, '.')", "rjust(5)", "center(7, '*')", "partition('b')", "rpartition('b')", "swapcase()", "join(['1', '2'])", "format(1, a=2)", "isalpha()", "islower()", "index('a')", "expandtabs()",
           "removeprefix('a')", "removesuffix('c')", "casefold()", "encode()"]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "true", "false", "boolean", "integer", "float", "odd", "even", "divisibleby(2)", "in([1, 2, 'a'])", "sameas(none)", "equalto(1)", "upper",
         "lower", "callable", "gt(1)", "le(2)", "eq('abc')", "ne(none)", "filter", "test"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def atom(self, kind):
        pool = {"number": NUMBERS, "text": TEXTS, "list": LISTS, "dict": DICTS, "any": NUMBERS + TEXTS + LISTS + DICTS + OTHERS}[kind]
        return self.random.choice(pool)

    def expression(self, depth, kind=None):
        pick = self.random
        kind = kind or pick.choice(["number", "text", "list", "dict", "any"])
        if depth <= 0:
            return self.atom(kind)
        inner = lambda k=None: self.expression(depth - 1, k)
        forms = [lambda: self.atom(kind), lambda: f"({inner('any')} if {inner('any')} else {inner('any')})", lambda: f"({inner('any')} {pick.choice(['and', 'or'])} {inner('any')})", lambda: f"(not {inner('any')})",
                 lambda: f"({inner()} {pick.choice(['==', '!='])} {inner()})", lambda: f"({inner('any')} is {pick.choice(['', 'not '])}{pick.choice(TESTS)})", lambda: f"({inner('number')} {pick.choice(['<', '<=', '>', '>='])} {inner('number')} < {inner('number')})",
                 lambda: f"({inner()} {pick.choice(['in', 'not in'])} {inner('list')})", lambda: f"({inner()} ~ {inner()})"]
        if kind == "number":
            forms += [lambda: f"({inner('number')} {pick.choice(['+', '-', '*', '/', '//', '%', '**'])} {inner('number')})", lambda: f"(-{inner('number')})", lambda: f"({inner('number')})|{pick.choice(NUMBER_FILTERS)}"] * 2
        if kind == "text":
            forms += [lambda: f"({inner('text')})|{pick.choice(TEXT_FILTERS)}", lambda: f"({inner('text')}).{pick.choice(METHODS)}", lambda: f"({inner('text')} + {inner('text')})", lambda: f"({inner('text')} * 2)",
                      lambda: f"({inner('text')})[{pick.choice(['0', '-1', '1:', ':-1', '::-1', '1:3', '5'])}]", lambda: f"('%s|%r' % ({inner()}, {inner()}))"] * 2
        if kind == "list":
            forms += [lambda: f"({inner('list')})|{pick.choice(LIST_FILTERS)}", lambda: f"({inner('list')})[{pick.choice(['0', '-1', '1:', ':-1', '::-1', '9'])}]", lambda: f"[{inner()}, {inner()}]", lambda: f"(({inner('list')}) + ({inner('list')}))"] * 2
        if kind == "dict":
            forms += [lambda: f"({inner('dict')})|{pick.choice(DICT_FILTERS)}", lambda: f"({inner('dict')}).{pick.choice(['items()', 'keys()', 'values()', 'get(1)', 'a', 'b', 'n'])}", lambda: f"({inner('dict')})['a']", lambda: f"{{'k': {inner()}, 1: {inner()}}}"] * 2
        return pick.choice(forms)()

    def template(self):
        pick = self.random
        expression = lambda kind=None: self.expression(pick.randint(1, 3), kind)
        dash = lambda: pick.choice(["", "", "-"])
        form = pick.randint(0, 7)
        if form <= 3:
            return "{{ " + expression() + " }}"
        if form == 4:
            return f"a \n {{%{dash()} if {expression('any')} {dash()}%}} \n x{{{{ {expression()} }}}} {{%{dash()} else %}}\ty\n {{% endif {dash()}%}} z"
        if form == 5:
            return f"{{% for i in {expression('list')} %}}{{{{ loop.index }}}}{{{{ i }}}}{{{{ ',' if not loop.last }}}}{{% else %}}none{{% endfor %}}"
        if form == 6:
            return f"{{% set v = {expression()} %}}{{{{ v }}}}|{{{{ v is string }}}}{{% set w %}}[{{{{ v }}}}]{{% endset %}}{{{{ w|length }}}}"
        return f"{{% macro f(a, b={expression()}) {dash()}%}} {{{{ a }}}}/{{{{ b }}}} {{%{dash()} endmacro %}}{{{{ f({expression()}) }}}}{{{{ f({expression()}, b={expression('any')}) }}}}"


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    out = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    out.filters["tojson"] = tojson
    out.globals["raise_exception"] = raise_exception
    out.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return out


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    count, seed = int(sys.argv[2]) if len(sys.argv) > 2 else 20000, int(sys.argv[3]) if len(sys.argv) > 3 else 0
    env, maker, cases, num_errors = environment(), Maker(seed), [], 0
    for _ in range(count):
        source = maker.template()
        case = {"template": source}
        try:
            text = env.from_string(source).render(**VARIABLES)
            if len(text) > 100000 or " at 0x" in text or "<built-in" in text or "<bound method" in text or "random" in source:
                continue  # addresses and chance
            case["text"] = text
        except Exception as error:
            case["error"] = f"{type(error).__name__}: {error}"
            num_errors += 1
        cases.append(case)
    tests = next(path for path in (build / "bin/troupe-tests", build / "bin/troupe-tests-models") if path.exists())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"variables": VARIABLES, "cases": cases}, file)
        file.flush()
        result = subprocess.run([tests, "--no-skip", "--test-case=templates of TROUPE_JINJA_CASES"], env={**os.environ, "TROUPE_JINJA_CASES": file.name}, capture_output=True, text=True, timeout=1800)
    print(result.stdout[-200000:])
    print(f"jinja2 {jinja2.__version__}: {len(cases)} templates, {num_errors} of them errors, seed {seed}")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
