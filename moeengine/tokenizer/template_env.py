"""The Jinja2 environment of chat templates: sandboxed, bounded, and its literals traced.

This is the only place where templates are compiled. Differences to plain Jinja2 are what Hugging Face templates expect
(`raise_exception`, `strftime_now`, `tojson` without HTML escapes, loop controls, `generation` blocks) and what
`traced` and `template_limits` need.
"""

import datetime
import json

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import pass_environment
from jinja2.visitor import NodeTransformer

from moeengine.tokenizer.traced import Traced, brace_formatted, joined, literal, percent_formatted

WIDTH_NAMES = frozenset(
    (
        "batch",
        "center",
        "indent",
        "ljust",
        "rjust",
        "round",
        "slice",
        "truncate",
        "zfill",
    )
)
UNSAFE_STR = frozenset(("encode", "expandtabs", "format_map", "maketrans", "translate"))
DROPPED_FILTERS = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
MAX_JSON_SPACE = 16  # characters between the entries that `tojson` writes
DROPPED_GLOBALS = ("lipsum",)


class GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what a model wrote, for training; here it is only its body."""

    tags = frozenset(("generation",))

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TracingGenerator(CodeGenerator):
    """Compiles string literals and template text to traced strings."""

    def visit_Const(self, node, frame):
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(f"environment.literal({value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node, frame):
        self.write("environment.concatenated((")
        for child in node.nodes:
            self.visit(child, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group):
        return f"environment.literal({''.join(map(str, group))!r})"


class _Measuring(NodeTransformer):
    """Passes every list, tuple and dict that a template builds through `measured`."""

    def __init__(self, environment):
        self._environment = environment

    def visit_List(self, node):
        return self._environment.through("measured", self.generic_visit(node))

    visit_Dict = visit_List

    def visit_Tuple(self, node):
        return self.visit_List(node) if node.ctx == "load" else node


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs one chat template at a time; `budget` has to be set before either."""

    code_generator_class = TracingGenerator
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    literal = staticmethod(literal)

    def __init__(self):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self.shown,
            extensions=["jinja2.ext.loopcontrols", GenerationBlock],
        )
        self.budget = None
        self.concat = self.concatenated
        self.filters.update(
            join=_join, replace=_replace, format=_format, safe=_identity, tojson=_tojson
        )
        for name in DROPPED_FILTERS:
            del self.filters[name]
        for name in DROPPED_GLOBALS:
            del self.globals[name]
        self.filters = {
            name: self._bounded(name, function) for name, function in self.filters.items()
        }
        self.tests = {name: self._bounded(name, function) for name, function in self.tests.items()}
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def _generate(self, source, *args, **kwargs):
        for loop in source.find_all(nodes.For):
            loop.iter = self.through("counted", loop.iter)
        for compare in source.find_all(nodes.Compare):
            compare.expr = self.through("measured", compare.expr)
            for operand in compare.ops:
                operand.expr = self.through("measured", operand.expr)
        return super()._generate(_Measuring(self).visit(source), *args, **kwargs)

    def through(self, name, expr):
        """The node for a call of this environment's method `name` with the value of `expr`."""
        call = nodes.Call(
            nodes.EnvironmentAttribute(name), [expr], [], None, None, lineno=expr.lineno
        )
        return call.set_environment(self)

    def _bounded(self, name, function):
        """A filter or test that counts as a step and is given nothing too large."""

        def bounded(*args, **kwargs):
            self.budget.spend()
            values = (*args, *kwargs.values())
            for value in values:
                self.budget.measured(value)
            if name in WIDTH_NAMES:
                self.budget.check_width(values[n_passed + 1 :])
            return function(*args, **kwargs)

        n_passed = int(hasattr(function, "jinja_pass_arg"))
        bounded.__dict__.update(getattr(function, "__dict__", {}))
        return bounded

    def measured(self, value):
        """`value`, refused when it is a huge container."""
        return self.budget.measured(value)

    def counted(self, iterable):
        """What a loop runs over; its length counts as steps."""
        if not hasattr(iterable, "__len__"):
            iterable = self._listed(iterable)
        self.budget.spend(len(iterable))
        return iterable

    def _listed(self, iterable):
        items = []
        for item in iterable:
            self.budget.spend()
            items.append(item)
        return items

    def shown(self, value):
        """The text of a value that is written out."""
        value = str(self.budget.measured(value))
        self.budget.check_text(len(value))
        return value

    def concatenated(self, parts):
        """The texts of `parts` in a row."""
        texts, size = [], 0
        for part in parts:
            texts.append(self.shown(part))
            size += len(texts[-1])
            self.budget.check_text(size)
        return joined("", texts)

    def call_binop(self, context, operator, left, right):
        self.budget.check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj, argument):
        return super().getitem(obj, self.budget.measured(argument))

    def is_safe_attribute(self, obj, attr, value):
        if isinstance(obj, str) and attr in UNSAFE_STR or isinstance(obj, (int, float)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value):
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if not isinstance(owner, str) or name != "format":
            return None  # format_map is refused as an attribute

        def formatted(*args, **kwargs):
            self.budget.check_format(owner, (*args, *kwargs.values()))
            return brace_formatted(SandboxedFormatter(self), owner, args, kwargs)

        return formatted

    def call(self, context, obj, /, *args, **kwargs):
        self.budget.spend()
        for value in (*args, *kwargs.values()):
            self.budget.measured(value)
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            if name == "replace" and len(args) >= 2:
                self.budget.check_replace(owner, *args)
            elif name == "join" and args:
                args = (self._listed(args[0]), *args[1:])
                self.budget.check_join(owner, args[0])
            elif name in WIDTH_NAMES:
                self.budget.check_width((*args, *kwargs.values()))
        return super().call(context, obj, *args, **kwargs)


@pass_environment
def _join(environment, value, d="", attribute=None):
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts = [environment.shown(part) for part in value]
    environment.budget.check_join(str(d), parts)
    return joined(str(d), parts)


@pass_environment
def _replace(environment, s, old, new, count=-1):
    s, old, new = (environment.shown(text) for text in (s, old, new))
    environment.budget.check_replace(s, old, new)
    return s.replace(old, new, -1 if count is None else count)


@pass_environment
def _format(environment, value, *args, **kwargs):
    environment.budget.check_format(value, (*args, *kwargs.values()))
    return percent_formatted(Traced(value, getattr(value, "trusted", ())), kwargs or args)


def _identity(value):
    return value


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    for name, length in (("indent", indent if isinstance(indent, int) else len(indent or "")),
                         ("separators", max(map(len, separators or ("",))))):  # fmt: skip
        if length > MAX_JSON_SPACE:
            raise TemplateRuntimeError(f"tojson: found {name} of {length}, expected at most {MAX_JSON_SPACE}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message):
    raise TemplateRuntimeError(message)


def _strftime_now(format):
    return datetime.datetime.now().strftime(format)
