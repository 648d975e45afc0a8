"""Renders chats and template snippets with Python's jinja2, set up as transformers sets it up.

    python -m venv venv && venv/bin/pip install jinja2==3.1.6 && venv/bin/python crates/text/tests/oracle/make.py

writes `renderings.json` beside this file: a list of {template | source, messages, tools, kwargs,
add_generation_prompt, text | error}. `template` names a model folder of the repository.
"""

import itertools
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[3]


class Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; rendering is not changed."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


class Refused(Exception):
    pass


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message):
        raise Refused(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


ENV = environment()

SYSTEM = {"role": "system", "content": "Be brief.  "}
HI = {"role": "user", "content": "Hi there!"}
HELLO = {"role": "assistant", "content": "Hello."}
ODD = {
    "role": "user",
    "content": " \n<b>&amp; 'quotes' \"double\" </b>\t{{ not }} {% a %} tag \\n海の月 🦑 \u2028 e\u0301\n\n",
}
THOUGHT = {"role": "assistant", "content": "Yes.", "reasoning_content": "\nI wonder.\n\nSo: yes.\n"}
CALLS = {
    "role": "assistant",
    "content": "I look it up.",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": {"town": "Turku & <Oulu>", "days": 2}},
        },
        {
            "id": "call_2",
            "type": "function",
            "function": {
                "name": "book",
                "arguments": {
                    "none": None,
                    "yes": True,
                    "list": [1, 2.5, "a", [], {}],
                    "deep": {"é": {"<k>": "v'\"\\/\u0007\x7f"}},
                    "floats": [1.0, 1e16, 1e-7, 123456789.125, -0.0, 1e300],
                    "big": 9223372036854775807,
                    "huge": 18446744073709551615,
                },
            },
        },
    ],
}
SILENT = {"role": "assistant", "content": None, "tool_calls": CALLS["tool_calls"][:1]}
CLEAR = {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear"}'}
SNOW = {"role": "tool", "tool_call_id": "call_2", "name": "book", "content": "snow\n"}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "First half, "}, {"type": "text", "text": "second half."}],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Look up the <sky> & \"more\" over a town's centre – now",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "enum": ["Turku", "Åbo"]},
                "days": {"type": "integer", "minimum": 1, "default": 1, "maximum": 1e3},
                "ratio": {"type": "number", "multipleOf": 0.0001, "default": None},
                "dry": {"type": "boolean", "default": False},
            },
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}

CHATS = [
    [HI],
    [SYSTEM, HI],
    [SYSTEM],
    [HI, HELLO, ODD],
    [SYSTEM, ODD, HELLO, HI],
    [HI, THOUGHT],
    [HI, THOUGHT, HI],
    [HI, THOUGHT, HI, THOUGHT],
    [SYSTEM, HI, CALLS, CLEAR, SNOW],
    [HI, CALLS, CLEAR, SNOW, HELLO, HI],
    [HI, SILENT, CLEAR],
    [HI, SILENT, CLEAR, {"role": "assistant", "content": ""}, HI],
    [PARTS],
    [{"role": "system", "content": ""}, PARTS, HELLO, PARTS],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": "\n"}],
    [{"role": "user", "content": "x" * 300 + "\n" * 5}],
    [HI, HELLO, SYSTEM, HI],
    [HI, {"role": "assistant", "content": "see <tag> and </tag>"}, HI],
    [HI, {"role": "assistant", "content": "<think>\nI wonder.\n</think>\n\nYes."}, HI],
    [HI, {"role": "assistant", "content": "I wonder.</think></think>\nYes."}],
]

# Every construct of Jinja that chat templates use, one by one.
SNIPPETS = [
    "{{ none }} {{ true }} {{ false }} {{ 1 }} {{ 1.0 }} {{ 1e20 }} {{ 1e-7 }} {{ missing }}|",
    "{{ [1, 'a', none, true, 2.0, {'k': \"it's\"}] }} {{ {'a': 1, 'b': [1.5]} }} {{ (1, 2) }}",
    "{{ data }} {{ data.floats }} {{ data.text }}",
    "{{ data | string }} {{ 1.0 | string }} {{ 3 | string }} {{ none | string }} {{ true | string }}",
    "{{ 'a' ~ 1 ~ 1.0 ~ none ~ true ~ 1e15 }}",
    "{{ 7 // 2 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ -7 // 2 }} {{ -7 % 3 }}",
    "{{ data | tojson }}",
    "{{ data | tojson(indent=2) }}",
    "{{ data | tojson(indent=4, sort_keys=true) }}",
    "{{ data | tojson(separators=(',', ':')) }}",
    "{{ data | tojson(ensure_ascii=true) }}",
    "{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}{{ '</script>' | tojson }}{{ 'x' | tojson | length }}",
    "{% for k, v in data.items() %}{{ k }}={{ v | tojson }};{% endfor %}",
    "{% for k, v in data | items %}{{ k }},{% endfor %}{% for k in data %}{{ k }},{% endfor %}",
    "{% for k, v in data | dictsort %}{{ k }},{% endfor %}",
    "{{ data.keys() | list | length }} {{ data.get('int') }} {{ data.get('no') }} {{ data.get('no', 5) }}",
    "{% for x in list %}{{ loop.index0 }}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem }};{% else %}none{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}{% for x in missing %}{{ x }}{% endfor %}",
    "{% for x in list if x > 1 %}{{ x }}{% if x == 2 %}{% continue %}{% endif %}{% if loop.index > 2 %}{% break %}{% endif %},{% endfor %}",
    "{% set ns = namespace(n=0, s='') %}{% for x in list %}{% set ns.n = ns.n + x %}{% set ns.s = ns.s + (x | string) %}{% endfor %}{{ ns.n }} {{ ns.s }}",
    "{{ list[::-1] }} {{ list[1:] }} {{ list[:-1] }} {{ list[-1] }} {{ text[2:5] }} {{ text[::-1] }} {{ list[5:] }}",
    "{% macro m(a, b='x', c=none) %}<{{ a }}|{{ b }}|{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m('a', 'b') }}",
    "{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}in{% endcall %}",
    "{% set x %}block {{ 1 + 1 }}\n{% endset %}{{ x | trim }}|{% filter upper %}up{% endfilter %}",
    "{{ text.split('b') }} {{ text.split('b')[-1] }} {{ text.split('b', 1) }} {{ ' a  b '.split() }}",
    "{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na\\n'.lstrip('\\n') }}|{{ 'aXb'.rstrip('b') }}",
    "{{ text.startswith(' a') }} {{ text.endswith('c') }} {{ text.replace('b', 'X') }} {{ text.upper() }} {{ 'AB'.lower() }} {{ 'ab cd'.title() }} {{ 'ab'.capitalize() }}",
    "{{ text.find('b') }} {{ text.count('b') }} {{ ','.join(['a', 'b']) }} {{ 'a\\nb'.splitlines() }} {{ '12'.isdigit() }}",
    "{{ text | trim }}|{{ text | length }}|{{ text | upper }}|{{ text | replace('a', 'A') }}|{{ 'ab cd' | title }}|{{ ' x' | capitalize }}",
    "{{ list | join(', ') }} {{ list | first }} {{ list | last }} {{ list | sum }} {{ list | max }} {{ list | min }} {{ list | reverse | list }} {{ list | sort(reverse=true) }}",
    "{{ messages | map(attribute='role') | list }} {{ messages | map(attribute='role') | join('+') }} {{ list | map('string') | join }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', '==', 'user') | list | length }} {{ messages | selectattr('name') | list }}",
    "{{ list | select('odd') | list }} {{ list | reject('odd') | list }} {{ [1, 1, 2] | unique | list }} {{ list | batch(2) | list }}",
    "{{ missing | default('d') }} {{ '' | default('d') }}|{{ '' | default('d', true) }} {{ none | default('d') }} {{ missing or 'o' }} {{ '' or 'o' }} {{ 0 and 1 }}",
    "{{ '3' | int }} {{ '2.5' | float }} {{ 3.7 | int }} {{ 3.14159 | round(2) }} {{ -3 | abs }} {{ 3 | float }}",
    "{{ 'a' in text }} {{ 'z' not in text }} {{ 2 in list }} {{ 'int' in data }} {{ 'role' in messages[0] }}",
    "{{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 1 < 2 < 3 }} {{ not '' }} {{ [] == [] }} {{ none == none }} {{ 1 != 2 }}",
    "{{ none is none }} {{ missing is defined }} {{ missing is undefined }} {{ data is mapping }} {{ list is mapping }}",
    "{{ text is string }} {{ text is iterable }} {{ text is sequence }} {{ data is iterable }} {{ data is sequence }} {{ list is sequence }} {{ 1 is iterable }}",
    "{{ 1 is number }} {{ 1.5 is number }} {{ true is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ 0 is false }} {{ 3 is odd }} {{ 4 is divisibleby(2) }}",
    "{{ 'a' if false }}|{{ 'a' if true else 'b' }}|{{ 'x' if data.int is defined and data.int else 'y' }}",
    "{{ messages[0].missing is defined }} {{ messages[0]['role'] }} {{ messages[0].missing }}|{{ messages[-1].content }}",
    "a\n{% if true %}\n  b\n{% endif %}\n  {% if true %}c{% endif %}\n\n{# note #}\nd\n",
    "  {%- if true -%}  x  {%- endif -%}  \n y {%+ if true %} z {% endif +%} \n w",
    "{{- ' a ' -}}  \n {{ 'b' }}\n{{ 'c' }}\n\n",
    "{% raw %}{{ x }}{% endraw %}{{ '{{' }}{# {{ no }} #}",
    "x{% generation %}\n  y\n{% endgeneration %}z {%- generation -%} \n w {%- endgeneration %} v",
    "{{ messages[0].content }}{{ messages[0]['content'] | tojson }}{{ (messages[0].content + '>') | length }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set x = [1] + [2] %}{{ x }}{{ 'ab' * 2 }}{{ list | length > 2 }}",
    "{% if text is not string and text is iterable %}no{% elif text %}yes{% endif %}{{ range(3) | list }}{{ range(1, 6, 2) | list }}",
    "{%- for m in messages -%}{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}{{ m['role'] }}{%- endfor -%}",
    "{{ raise_exception('it is ' + text) }}",
    "{{ '%s and %d' | format('a', 3) }} {{ '{} {}'.format(1, 'x') }} {{ 'a,b' | replace(',', ';') }} {{ 'x' | indent(2, true) }}",
    "{{ dict(a=1, b=2) }} {{ dict(a=1) | tojson }} {{ {'a': {'b': 1}}.a.b }} {{ ([1, 2] | list)[0] }} {{ 'abc' | list }}",
    "{% with q = 5 %}{{ q }}{% endwith %}{{ q is defined }} {{ ['b', 'a'] | sort | join }} {{ 'A' | lower }} {{ '&<>' }}{{ '<' | e }}",
]

VARIABLES = {
    "data": {
        "text": "<x> & 'y' \"z\" é\n\u2028",
        "int": 7,
        "floats": [0.1, 100000.0, 1e16, 1.5e-5, -2.0],
        "none": None,
        "yes": True,
        "nested": {"b": [], "a": {}, "C": [{"k": [1]}]},
    },
    "list": [1, 2, 3, 4],
    "text": " a<b>bc ",
}


def special_tokens(config):
    names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
    tokens = {name: config.get(name) for name in names}
    return {name: t["content"] if isinstance(t, dict) else t for name, t in tokens.items() if t}


def render(source, special, case):
    try:
        text = ENV.from_string(source).render(
            messages=case["messages"],
            tools=case["tools"] or None,
            documents=None,
            add_generation_prompt=case["add_generation_prompt"],
            **{**special, **case["kwargs"]},
        )
        return {"text": text}
    except Refused as refused:
        return {"error": str(refused)}


def main():
    cases = []
    for folder in ["models/outrider-tiny", "golden/hybrid-tiny-f32"]:
        config = json.loads((ROOT / folder / "tokenizer_config.json").read_text())
        jinja_file = ROOT / folder / "chat_template.jinja"
        source = jinja_file.read_text() if jinja_file.exists() else config["chat_template"]
        off = {"enable_thinking": False}
        variants = [([], {}, True), ([WEATHER, TIME], {}, True), ([], off, True), ([WEATHER], off, False)]
        for (tools, kwargs, prompt), messages in itertools.product(variants, CHATS):
            case = {"messages": messages, "tools": tools, "kwargs": kwargs, "add_generation_prompt": prompt}
            cases.append({"template": folder, **case, **render(source, special_tokens(config), case)})
    for source in SNIPPETS:
        case = {"messages": [ODD, HELLO, HI], "tools": [], "kwargs": VARIABLES, "add_generation_prompt": True}
        cases.append({"source": source, **case, **render(source, {}, case)})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / "renderings.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
