"""What a script may change so that its samples are others, and what differs between runs and changes no sample.

``VALUE`` is 1 in one run and 2 in another. A script sees it and nothing else of that.
"""

# Each mutation is a line of data, whose text is code.
# ruff: noqa: E501, RUF012

from __future__ import annotations

import textwrap
from typing import Literal, NamedTuple


class Script(NamedTuple):
    """A script that makes ``dataset``, and maybe ``collate_fn`` and ``worker_init_fn``."""

    text: str
    modules: dict[str, str] = {}  # modules of the user's beside it, by file
    environment: dict[str, str] = {}  # variables, in which ``{}`` stands for ``VALUE``
    by: Literal["fingerprint", "witness"] = "fingerprint"
    """Who sees the mutation: the fingerprint, or only the witness, which compares samples."""


def in_second(code: str) -> str:
    """Return code that only the second run carries out."""
    return f"if VALUE == 2:\n{textwrap.indent(code or 'pass', '    ')}"


def rows(
    get: str,
    before: str = "",
    *,
    inside: str = "",
    init: str = "",
    after: str = "",
    second: str = "",
    base: str = "Dataset",
    modules: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    by: Literal["fingerprint", "witness"] = "fingerprint",
) -> Script:
    """Return a script of a data set: what gives sample ``i``, what stands around it, what only the 2nd run does."""
    lines = [
        textwrap.dedent(before),
        f"class Rows({base}):",
        "    def __init__(self):",
        "        super().__init__()",
        textwrap.indent(textwrap.dedent(init), " " * 8),
        "    def __len__(self):",
        "        return 8",
        textwrap.indent(textwrap.dedent(inside), " " * 4),
        "    def __getitem__(self, i):",
        textwrap.indent(textwrap.dedent(get), " " * 8),
        "dataset = Rows()",
        textwrap.dedent(after),
        in_second(second),
    ]
    return Script("\n".join(lines), modules or {}, environment or {}, by)


def held(get: str, change: str = "cfg.SIZE = VALUE", init: str = "self.cfg = cfg", **more: str) -> Script:
    """Return a script that changes a module of the user's, and holds it in its data set."""
    return rows(get, before=f"import cfg\n{change}", init=init, modules=CFG, **more)  # type: ignore[arg-type]


def variable(read: str, name: str = "AUG_SIZE", **more: str) -> Script:
    """Return a script whose samples a variable of the environment decides."""
    return rows(f"return i * int({read})", environment={name: "{}"}, **more)  # type: ignore[arg-type]


CFG = {
    "cfg.py": "SIZE = 1\nLEVELS = [1]\nclass Box:\n    size = 1\nclass One:\n    def __init__(self):\n        self.size = 1\nbox = One()\ndef scale(i):\n    return i\n"
}
RELU = "torch.nn.functional.relu = lambda x, inplace=False: x * 2"
SET = "import cfg\ncfg.SIZE = VALUE"
THEIRS = {
    "theirs.py": """
import torch
import torch.nn.functional as F
SIZE = 1
def helped(i, by=1):
    return i * SIZE * by
class Base:
    size = 1
    def __len__(self):
        return 8
    def scaled(self, i):
        return i * self.size
    @property
    def twice(self):
        return 2
class Rows(Base):
    def __getitem__(self, i):
        return self.scaled(i) + helped(i) + self.twice
class Relu(Base):
    def __getitem__(self, i):
        return F.relu(torch.tensor(float(i)))
"""
}
INIT = """
LEVEL = 1
def init(worker, level=1, seed=0):
    global LEVEL
    LEVEL = level
"""

CACHED = "@functools.cached_property\ndef n(self):\n    return {}"
ENV = "def env(name):\n    return os.environ.get(name)"
LONG = "torch.set_default_dtype(torch.float64)"
SEEDED = "\ndef worker_init_fn(w):\n    torch.manual_seed({} + w)"
EITHER = "f = (lambda i: i) if VALUE == 1 else (lambda i: i * 2)"


def theirs(change: str, kind: str = "Rows") -> Script:
    """Return a script that changes a module of the user's after its import."""
    return Script(f"import theirs\ndataset = theirs.{kind}()\n{in_second(change)}\n", THEIRS)


WARNED = "try:\n    warnings.warn('bad', KIND)\n    return i\nexcept UserWarning:\n    return -1"
DIVIDED = "try:\n    return float(np.ones(1)[0] / np.zeros(1)[0])\nexcept FloatingPointError:\n    return -1"
DECIMAL = "return str(decimal.Decimal(i + 1) / 7)"
HELD = "import builtins\nbuiltins.NUMBER = 3\ndef scaled(i):\n    return i * NUMBER\nbuiltins.scaled = scaled\ndel scaled"
FORMAT = """
from PIL import Image, PngImagePlugin
import io
class Turned(PngImagePlugin.PngImageFile):
    def __init__(self, file=None, name=None):
        super().__init__(io.BytesIO(file.read()[::-1]), name)
if {}:
    Image.register_open("TURNED", Turned, lambda begin: begin.startswith(b"\\x82"))
file = io.BytesIO()
Image.new("L", (40, 40)).save(file, "PNG")
TURNED = file.getvalue()[::-1]
def opened(i):
    try:
        return Image.open(io.BytesIO(TURNED)).size[0] * i
    except Image.UnidentifiedImageError:
        return -1
"""
MUTATIONS: dict[str, Script] = {
    # code of the script
    "a global number": rows("return i * SIZE", "SIZE = VALUE"),
    "a global list": rows("return i * SIZES[0]", "SIZES = [VALUE]"),
    "an item of a global table": rows("return i * cfg['size']", "cfg = {'lr': 1, 'size': VALUE}"),
    "an item of an item": rows("return i * cfg['data']['size']", "cfg = {'lr': 1, 'data': {'size': VALUE}}"),
    "an item by a name": rows("k = 'size'\nreturn i * cfg[k]", "cfg = {'lr': 1, 'size': VALUE}"),
    "an item by get": rows("return i * cfg.get('size')", "cfg = {'lr': 1, 'size': VALUE}"),
    "an item of a table that is handed on": rows(
        "return f(cfg, 'size') * i", "def f(c, k):\n    return c[k]\ncfg = {'lr': 1, 'size': VALUE}"
    ),
    "an item of one table or another": rows(
        "return i * (cfg if i else {})['size'] if i else 0", "cfg = {'lr': 1, 'size': VALUE}"
    ),
    "all items of a global table": rows("return cfg['n'] * sum(cfg.values())", "cfg = {'lr': VALUE, 'n': 2}"),
    "a global that a helper reads": rows(
        "return f(i)", "SIZE = VALUE\ndef f(i):\n    return g(i)\ndef g(i):\n    return i * SIZE"
    ),
    "which function a name means": rows("return f(i)", EITHER),
    "a closure": rows("return self.f(i)", "def by(n):\n    return lambda i: i * n", init="self.f = by(VALUE)"),
    "a closure in a closure": rows(
        "return self.f(i)",
        "def by(n):\n    def inner(i):\n        return (lambda: i * n)()\n    return inner",
        init="self.f = by(VALUE)",
    ),
    "a default argument": rows("return f(i)", "def f(i, by=VALUE):\n    return i * by"),
    "a default of a keyword": rows("return f(i)", "def f(i, *, by=VALUE):\n    return i * by"),
    "defaults set later": rows("return f(i)", "def f(i, n=1):\n    return i * n\nf.__defaults__ = (VALUE,)"),
    "code set later": rows("return f(i)", "def f(i):\n    return i", second="f.__code__ = (lambda i: 7).__code__"),
    "an attribute of a function": rows("return f(i)", "def f(i):\n    return i * f.by\nf.by = VALUE"),
    "a decorated function": rows(
        "return f(i)",
        "def by(n):\n    def wrap(g):\n        @functools.wraps(g)\n        def inner(i):\n            return g(i) * n\n        return inner\n    return wrap\n@by(VALUE)\ndef f(i):\n    return i",
    ),
    "a function that torch decorates": rows(
        "return f(i)",
        "f_ = (lambda i: i) if VALUE == 1 else (lambda i: i * 2)\n@torch.no_grad()\ndef f(i):\n    return f_(i)",
    ),
    "a context manager": rows(
        "with f() as n:\n    return i * n", "@contextlib.contextmanager\ndef f():\n    yield SIZE\nSIZE = VALUE"
    ),
    "singledispatch": rows(
        "return f(i)",
        "@functools.singledispatch\ndef f(i):\n    return 0\ng = (lambda i: i + 1) if VALUE == 1 else (lambda i: i + 2)\nf.register(int, g)",
    ),
    "a cached function": rows("return f(i)", "@functools.cache\ndef f(i):\n    return i * SIZE\nSIZE = VALUE"),
    "a generator function": rows("return next(f(i))", "def f(i):\n    yield i * SIZE\nSIZE = VALUE"),
    "a partial": rows("return self.f(i)", init="self.f = functools.partial(operator.mul, VALUE)"),
    "an item getter": rows("return self.f((i, i * 2, i * 3))", init="self.f = operator.itemgetter(VALUE)"),
    "a partial method": rows(
        "return self.f(i)", inside="def g(self, by, i):\n    return i * by\nf = functools.partialmethod(g, VALUE)"
    ),
    "globals by text": rows("return i * globals()['SIZE']", "SIZE = VALUE"),
    "eval": rows("return eval('SIZE') * i", "SIZE = VALUE"),
    "a built-in function": rows("return pow(i, 1)", "import builtins", second="builtins.pow = lambda *a: 7"),
    # attributes and classes of the script
    "an attribute": rows("return i * self.n", init="self.n = VALUE"),
    "a nested attribute": rows("return i * self.c[0][0].n", init="self.c = {0: [types.SimpleNamespace(n=VALUE)]}"),
    "a slot": rows("return i * self.s.n", "class S:\n    __slots__ = 'n'", init="self.s = S()\nself.s.n = VALUE"),
    "a class attribute": rows("return i * self.n", inside="n = VALUE"),
    "a class attribute set afterwards": rows("return i * self.n", inside="n = 1", after="Rows.n = VALUE"),
    "a class attribute of a base": rows("return i * self.n", "class Base(Dataset):\n    n = VALUE", base="Base"),
    "the order of bases": rows(
        "return self.f(i)",
        "class A:\n    def f(self, i):\n        return i\nclass B:\n    def f(self, i):\n        return i * 2\nboth = (A, B) if VALUE == 1 else (B, A)",
        base="*both",
    ),
    "a static method": rows("return self.f(i)", EITHER, inside="f = staticmethod(f)"),
    "a class method": rows("return self.f(i)", inside="n = VALUE\nf = classmethod(lambda cls, i: i * cls.n)"),
    "a property": rows("return i * self.n", "SIZE = VALUE", inside="@property\ndef n(self):\n    return SIZE"),
    "a cached property's code": rows("return i * self.n", "SIZE = VALUE", inside=CACHED.format("SIZE")),
    "an assigned cached property": rows("return i * self.n", inside=CACHED.format("1"), after="dataset.n = VALUE"),
    "a cached property assigned by update": rows(
        "return i * self.n", inside=CACHED.format("1"), after="vars(dataset).update(n=VALUE)", by="witness"
    ),
    "a descriptor": rows(
        "return i * self.n",
        "class D:\n    def __init__(self, n):\n        self.n = n\n    def __get__(self, *_):\n        return self.n",
        inside="n = D(VALUE)",
    ),
    "__getattr__": rows(
        "return i * self.n",
        "SIZE = VALUE",
        inside="def __getattr__(self, name):\n    if name == 'n':\n        return SIZE\n    raise AttributeError(name)",
    ),
    "a method of an object": rows(
        "return self.f(i)", "def times(n):\n    return lambda i: i * n", after="dataset.f = times(VALUE)"
    ),
    "a method that was replaced": rows(
        "return self.f(i)", inside="def f(self, i):\n    return i", second="Rows.f = lambda self, i: i * 2"
    ),
    "__getitem__ replaced": rows("return i", second="Rows.__getitem__ = lambda self, i: i * 2"),
    "a metaclass attribute": rows(
        "return i * type(self).n",
        "class M(type):\n    n = VALUE\nclass Base(Dataset, metaclass=M):\n    pass",
        base="Base",
    ),
    "a metaclass method": rows(
        "return type(self).f(i)",
        "SIZE = VALUE\nclass M(type):\n    def f(cls, i):\n        return i * SIZE\nclass Base(Dataset, metaclass=M):\n    pass",
        base="Base",
    ),
    "an enum": rows("return i * E.A.value", "class E(enum.Enum):\n    A = VALUE"),
    "a data class's default": rows("return i * C().n", "@dataclasses.dataclass\nclass C:\n    n: int = VALUE"),
    "a nested class": rows("return i * self.In.n", inside="class In:\n    n = VALUE"),
    "an array": rows("return i * int(self.x[0])", init="self.x = np.array([VALUE])"),
    "a tensor": rows("return i * self.x[0]", init="self.x = torch.tensor([VALUE])"),
    "a tensor through NumPy": rows(
        "return i * self.x[0]", init="self.x = torch.ones(1)", after="dataset.x.numpy()[0] = VALUE"
    ),
    "a tensor by data": rows("return self.x[0]", init="self.x = torch.ones(1)", after="dataset.x.data[0] = VALUE"),
    "a singleton that is pickled by name": Script(
        "import theirs\nfrom torch.utils.data import TensorDataset\ntheirs.C.n = VALUE\nclass Rows(Dataset):\n    def __init__(self):\n        self.c = theirs.C\n    def __len__(self):\n        return 8\n    def __getitem__(self, i):\n        return i * self.c.n\ndataset = Rows()",
        {
            "theirs.py": "class K:\n    def __init__(self):\n        self.n = 1\n    def __reduce__(self):\n        return 'C'\nC = K()\n"
        },
    ),
    "what __getstate__ drops": rows(
        "return i * getattr(self, 'n', 1)",
        init="self.n = VALUE",
        inside="def __getstate__(self):\n    return {k: v for k, v in vars(self).items() if k != 'n'}",
        by="witness",
    ),
    "annotations": rows(
        "return i * type(self).__annotations__['n']", after="Rows.__annotations__ = {'n': VALUE}", by="witness"
    ),
    "a doc string of a class": rows("return len(self.__doc__)", after="Rows.__doc__ = 'a' * VALUE", by="witness"),
    "the command line": rows("return i * int(sys.argv[1])"),
    "the command line by a module imported when called": rows("import sys as s\nreturn i * int(s.argv[-1])"),
    "the command line by a parser": rows(
        "return i * parsed().n",
        "import argparse\ndef parsed():\n    p = argparse.ArgumentParser()\n    p.add_argument('n', type=int)\n    return p.parse_args()",
    ),
    "the command line by getattr": rows("return i * int(getattr(sys, 'argv')[1])"),
    # what the process is
    "warnings that raise": rows(
        WARNED, "import warnings\nKIND = UserWarning", second="warnings.simplefilter('error')"
    ),
    "warnings of one kind that raise": rows(
        WARNED,
        "import warnings\nclass KIND(UserWarning):\n    pass",
        second="warnings.simplefilter('ignore')\nwarnings.filterwarnings('error', 'bad', KIND)",
    ),
    "warnings that raise but for one": rows(
        WARNED,
        "import warnings\nKIND = UserWarning\nwarnings.simplefilter('error')",
        second="warnings.filterwarnings('ignore', 'bad')",
    ),
    "NumPy's errors": rows(DIVIDED, second="np.seterr(all='raise')"),
    "one of NumPy's errors": rows(DIVIDED, second="np.seterr(divide='raise')"),
    "decimal's precision": rows(DECIMAL, "import decimal\ndecimal.getcontext().prec = 5 * VALUE"),
    "decimal's rounding": rows(
        DECIMAL, "import decimal", second="decimal.getcontext().rounding = decimal.ROUND_UP"
    ),
    "decimal's traps": rows(
        "try:\n    return str(decimal.Decimal(i) / 7)\nexcept decimal.Inexact:\n    return -1",
        "import decimal",
        second="decimal.getcontext().traps[decimal.Inexact] = True",
    ),
    "the digits of an integer": rows(
        "try:\n    return len(str(10 ** 5000)) + i\nexcept ValueError:\n    return -1",
        second="sys.set_int_max_str_digits(0)",
    ),
    "GIF's loading": rows(
        "return opened()",
        """
from PIL import GifImagePlugin, Image
import io
if VALUE == 2:
    GifImagePlugin.LOADING_STRATEGY = GifImagePlugin.LoadingStrategy.RGB_ALWAYS
file = io.BytesIO()
Image.new("P", (4, 4)).save(file, "GIF")
def opened():
    return Image.open(io.BytesIO(file.getvalue())).mode
""",
    ),
    "a number in builtins": rows("return i * NUMBER", "import builtins\nbuiltins.NUMBER = VALUE"),
    "a number by builtins": rows("return i * builtins.NUMBER", "import builtins\nbuiltins.NUMBER = VALUE"),
    "a number by getattr of builtins": rows(
        "import builtins as b\nreturn i * getattr(b, 'NUMBER', 0)", "import builtins\nbuiltins.NUMBER = VALUE"
    ),
    "a name in builtins that may be missing": rows(
        "try:\n    return i * NUMBER\nexcept NameError:\n    return -1",
        "import builtins",
        second="builtins.NUMBER = 2",
    ),
    "a function in builtins": rows("return scaled(i)", HELD.replace("= 3", "= VALUE")),
    "a class in builtins": rows(
        "return Kind().n * i", "import builtins\nclass K:\n    n = VALUE\nbuiltins.Kind = K"
    ),
    "a function of Python's that stands for another": rows(
        "return round(i + 0.5)", "import builtins", second="builtins.round = int"
    ),
    "a number in builtins that a module of the user's reads": Script(
        "import builtins\nbuiltins.NUMBER = VALUE\nimport theirs\ndataset = theirs.Rows()",
        {
            "theirs.py": "class Rows:\n    def __len__(self):\n        return 8\n    def __getitem__(self, i):\n        return i * NUMBER\n"
        },
    ),
    # collation and workers
    "a collation's closure": rows(
        "return i", "def c(n):\n    return lambda x: [each * n for each in x]\ncollate_fn = c(VALUE)"
    ),
    "an object that collates": rows(
        "return i",
        "class C:\n    def __init__(self, n):\n        self.n = n\n    def __call__(self, x):\n        return [each * self.n for each in x]\ncollate_fn = C(VALUE)",
    ),
    "a value bound to worker_init_fn": rows(
        "return i * LEVEL", INIT + "worker_init_fn = functools.partial(init, level=VALUE)"
    ),
    "a place bound to worker_init_fn": rows(
        "return i * LEVEL",
        INIT
        + "class Args:\n    pass\ndef by(args, worker):\n    init(worker, args.level)\nargs = Args()\nargs.level = VALUE\nworker_init_fn = functools.partial(by, args)",
    ),
    "a seed that worker_init_fn and samples read": rows("return i * SEED", "SEED = VALUE" + SEEDED.format("SEED")),
    "a function named for seeds that worker_init_fn calls": rows(
        "return i * LEVEL",
        INIT + "by = VALUE\ndef seed_worker(w):\n    init(w, by)\ndef worker_init_fn(w):\n    seed_worker(w)",
    ),
    "an object that is worker_init_fn": rows(
        "return i * LEVEL",
        INIT
        + "class I:\n    def __init__(self, n):\n        self.n = n\n    def __call__(self, w):\n        init(w, self.n)\nworker_init_fn = I(VALUE)",
    ),
    "an entry of default_collate_fn_map": rows(
        "return C(i)",
        "from torch.utils.data._utils.collate import default_collate_fn_map as m\nclass C:\n    def __init__(self, n):\n        self.n = n\ndef c(batch, *, collate_fn_map=None):\n    return [each.n * SIZE for each in batch]\nSIZE = VALUE\nm[C] = c",
    ),
    "the entry of torch.Tensor": rows(
        "return torch.tensor(i)",
        "from torch.utils.data._utils.collate import default_collate_fn_map as m\ndef c(batch, *, collate_fn_map=None):\n    return torch.stack(batch) * VALUE\nm[torch.Tensor] = c",
    ),
    # variables of the environment
    "a variable": variable("os.environ['AUG_SIZE']"),
    "a variable by get": variable("os.environ.get('AUG_SIZE', 1)"),
    "a variable by getenv": variable("os.getenv('AUG_SIZE', 1)"),
    "a variable as bytes": variable("os.environb[b'AUG_SIZE']"),
    "a variable by a helper": variable("env('AUG_SIZE')", before=ENV),
    "a variable by a method that helps": variable("self.env('AUG_SIZE')", inside=ENV.replace("(", "(self, ", 1)),
    "a variable by a global": variable("os.environ[KEY]", before="KEY = 'AUG_SIZE'"),
    "a variable by an attribute": variable("os.environ[self.key]", init="self.key = 'AUG_SIZE'"),
    "a variable by a default": variable("env()", before=ENV.replace("name", "name='AUG_SIZE'", 1)),
    "a variable by an f-string": variable("os.environ[f'AUG_{self.key}']", init="self.key = 'SIZE'"),
    "a variable by a sum": variable("os.environ['AUG_' + self.key.upper()]", init="self.key = 'size'"),
    "a variable by format": variable("env('{}_{}'.format('AUG', 'SIZE'))", before=ENV),
    "a variable by join": variable("os.environ['_'.join(['AUG', 'SIZE'])]"),
    "a variable by its beginning": variable("next(v for k, v in os.environ.items() if k.startswith('AUG_'))"),
    "a variable of an alias": variable("E['AUG_SIZE']", before="E = os.environ"),
    "a variable by a bound method": variable("env('AUG_SIZE')", before="env = os.environ.get"),
    "a variable in a path": variable("os.path.expandvars('$AUG_SIZE')"),
    "a variable by a loop over a tuple": variable("[os.environ[k] for k in ('AUG_SIZE',)][0]"),
    "whether a variable is there": rows(
        "return i * (1 + ('AUG' in os.environ))", second="os.environ['AUG'] = '1'"
    ),
    "all variables": variable("dict(os.environ)[''.join(map(chr, [65, 85, 71]))]", "AUG", by="witness"),
    # modules of the user's
    "a module's global": rows("return i * cfg.SIZE", SET, modules=CFG),
    "a module that is held": held("return i * self.cfg.SIZE"),
    "a module that is held in a dict": held("return i * self.all['cfg'].SIZE", init="self.all = {'cfg': cfg}"),
    "a module in a closure": held(
        "return self.f(i)", "cfg.SIZE = VALUE\ndef by(c):\n    return lambda i: i * c.SIZE", "self.f = by(cfg)"
    ),
    "a module by getattr": rows("return i * getattr(cfg, 'SIZE')", SET, modules=CFG),
    "a module by getattr of any name": held("return i * getattr(cfg, self.key.upper())", init="self.key = 'size'"),
    "a held module by vars": held("return i * vars(self.cfg)['SI' + 'ZE']"),
    "a held module by __dict__": held("return i * self.cfg.__dict__['SIZE']"),
    "a module that is given": rows("return f(cfg, i)", SET + "\ndef f(c, i):\n    return i * c.SIZE", modules=CFG),
    "a list of a held module": held("return i * self.cfg.LEVELS[0]", "cfg.LEVELS[0] = VALUE"),
    "an object of a held module": held("return i * self.cfg.box.size", "cfg.box.size = VALUE"),
    "a class of a held module": held("return i * self.cfg.Box.size", "cfg.Box.size = VALUE"),
    "a function of a held module": held("return self.cfg.scale(i)", "", second="cfg.scale = lambda i: i * 2"),
    "a module imported when called": rows("import cfg\nreturn i * cfg.SIZE", SET, modules=CFG),
    "a module of sys.modules": rows("return i * sys.modules['cfg'].SIZE", SET, modules=CFG),
    "a module by import_module": rows("return i * importlib.import_module('cfg').SIZE", SET, modules=CFG),
    "a module in a package": rows(
        "return i * conf.a.SIZE",
        "import conf.a\nconf.a.SIZE = VALUE",
        modules={"conf/__init__.py": "", "conf/a.py": "SIZE = 1\n"},
    ),
    "a module attribute that is computed": rows(
        "return i * getattr(sys.modules[''.join(map(chr, [99, 102, 103]))], 'SIZE')",
        SET,
        modules=CFG,
        by="witness",
    ),
    "a global of the data set's module": theirs("theirs.SIZE = 2"),
    "a function of the data set's module": theirs("theirs.helped = lambda i: i * 5"),
    "a default in the data set's module": theirs("theirs.helped.__defaults__ = (2,)"),
    "an attribute of a base in a module": theirs("theirs.Base.size = 2"),
    "a method of a base in a module": theirs("theirs.Base.scaled = lambda self, i: i * 9"),
    "a property of a base in a module": theirs("theirs.Base.twice = property(lambda self: 3)"),
    # functions and settings of installed packages
    "a function of torch": rows("return torch.nn.functional.relu(torch.tensor(-1.0 - i))", second=RELU),
    "a function of torch by another name": rows(
        "return F.relu(torch.tensor(-1.0 - i))", "import torch.nn.functional as F", second=RELU
    ),
    "a function of torch that a module calls": theirs("theirs.F.relu = lambda x: x + 5", "Relu"),
    "a function of torch that another one calls": rows(
        "return self.f(torch.tensor(-1.0 - i))", second=RELU, init="self.f = torch.nn.ReLU()"
    ),
    "a method of torch's": rows(
        "return self.f(torch.tensor(1.0 + i))",
        second="torch.nn.ReLU.forward = lambda self, x: x + 1",
        init="self.f = torch.nn.ReLU()",
    ),
    "a method of torch's that a patching module replaced": rows(
        "return self.f(torch.tensor(1.0 + i))",
        second="import patches",
        init="self.f = torch.nn.ReLU()",
        modules={"patches.py": "import torch\ntorch.nn.ReLU.forward = lambda self, x: x + 1\n"},
    ),
    "a method of a base of torch's": rows(
        "return self.f(torch.tensor(1.0 + i))",
        second="torch.nn.Module.__call__ = lambda self, x: x + 1",
        init="self.f = torch.nn.ReLU()",
    ),
    "a method of torch.Tensor": rows("return torch.tensor(i + 1).neg()", second="torch.Tensor.neg = lambda x: x"),
    "a function that a patching module replaced": rows(
        "return F.relu(torch.tensor(-1.0 - i))",
        "import torch.nn.functional as F",
        second="import patches",
        modules={"patches.py": "import torch\ntorch.nn.functional.relu = lambda x: x\n"},
    ),
    "a function of the standard library": rows("return int(math.sqrt(i))", second="math.sqrt = lambda x: 7"),
    "a function of json": rows("return json.loads(str(i))", second="json.loads = lambda x: 7"),
    "a function of PIL": rows(
        "return Image.new('L', (2 + i, 2)).size",
        "from PIL import Image",
        second="Image.new = lambda mode, size: type('I', (), {'size': (1, 1)})",
    ),
    "a method of PIL's images": rows(
        "return Image.new('L', (4, 4)).resize((2, 2)).size",
        "from PIL import Image",
        second="Image.Image.resize = lambda self, size: self",
    ),
    "a number of an installed module": rows(
        "return i * ImageFile.MAXBLOCK", "from PIL import ImageFile\nImageFile.MAXBLOCK = VALUE"
    ),
    "torch's default dtype": rows("return str((torch.ones(1) * i).dtype)", second=LONG),
    "torch's default dtype that is asked for": rows("return str(torch.get_default_dtype())", second=LONG),
    "truncated images": rows(
        "return opened()",
        """
from PIL import Image, ImageFile
import io, numpy as np
if VALUE == 2:
    ImageFile.LOAD_TRUNCATED_IMAGES = True
file = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(file, "JPEG")
TEXT = file.getvalue()[:-500]
def opened():
    return Image.open(io.BytesIO(TEXT)).convert("L").size
""",
    ),
    "a format that PIL is taught": rows("return opened(i)", FORMAT.format("VALUE == 2")),
    "large images": rows(
        "return Image.new('L', (40, 40)).size if Image.MAX_IMAGE_PIXELS is None else 0",
        "from PIL import Image",
        second="Image.MAX_IMAGE_PIXELS = None",
    ),
    "csv's longest field": rows(
        "return len(next(csv.reader(['a' * 200_000]))[0])", "import csv", second="csv.field_size_limit(1 << 20)"
    ),
}

ALIKE: dict[str, Script] = {
    "warnings that are printed": rows(
        "warnings.warn('x')\nreturn i", "import warnings", second="warnings.simplefilter('ignore')"
    ),
    "what has happened in a decimal context": rows("return i", "import decimal", second="decimal.Decimal(1) / 3"),
    "a built-in name that nothing reads": rows("return len(str(i))", "import builtins\nbuiltins.NUMBER = VALUE"),
    "a built-in name that all have": rows("return i * NUMBER + scaled(i)", HELD),
    "a command line that others parse": rows(
        "return i",
        "import argparse\ndef parsed():\n    return argparse.ArgumentParser().parse_known_args(sys.argv)\nparsed()",
    ),
    "seeds": rows("return i", "torch.manual_seed(VALUE)\nrandom.seed(VALUE)\nseed = VALUE"),
    "a learning rate and a model": rows("return i", "lr = VALUE\nmodel = torch.nn.Linear(VALUE, 1)"),
    "ranks": rows("return i", environment={"RANK": "{}", "LOCAL_RANK": "{}", "CUDA_VISIBLE_DEVICES": "{}"}),
    "ranks that the code reads": rows(
        "os.environ.get('RANK')\nos.environ.get('LOCAL_RANK')\nreturn i",
        environment={"RANK": "{}", "LOCAL_RANK": "{}"},
    ),
    "run ids that the code reads": rows(
        "[os.environ.get(k) for k in ('WANDB_RUN_ID', 'PENSTOCK_RUN_ID', 'TMPDIR')]\nreturn i",
        environment={"WANDB_RUN_ID": "{}", "PENSTOCK_RUN_ID": "{}", "TMPDIR": "/tmp/{}"},
    ),
    "other variables": rows("return int(os.environ.get('SIZE', i))", environment={"BATCH_SIZE": "{}", "LR": "{}"}),
    "all variables that an alias holds": rows(
        "return i * int(E.get('SIZE', 1))", "E = os.environ", environment={"BATCH_SIZE": "{}", "RANK": "{}"}
    ),
    "seed and rank bound to worker_init_fn": rows(
        "return i",
        "def init(worker, num_workers, rank, seed, world_size=1):\n    torch.manual_seed(seed + rank)\nworker_init_fn = functools.partial(init, num_workers=VALUE, rank=VALUE, seed=VALUE, world_size=VALUE)",
    ),
    "seed and rank bound by place": rows(
        "return i",
        "def init(num_workers, rank, seed, worker):\n    torch.manual_seed(seed + rank)\nworker_init_fn = functools.partial(init, VALUE, VALUE, VALUE)",
    ),
    "arguments bound to worker_init_fn": rows(
        "return i",
        "args = types.SimpleNamespace(seed=VALUE, lr=VALUE, out=f'run-{VALUE}')\ndef init(args, worker):\n    torch.manual_seed(args.seed + worker)\nworker_init_fn = functools.partial(init, args)",
    ),
    "what a library binds to worker_init_fn": rows(
        "return i", "from torch.utils.data import _utils\nworker_init_fn = functools.partial(print, VALUE)"
    ),
    "other items of a global table": rows(
        "return i * cfg['data']['size']",
        "cfg = {'lr': VALUE, 'seed': VALUE, 'out': f'run-{VALUE}', 'data': {'size': 3}}",
    ),
    "a seed that worker_init_fn reads": rows("return i", "SEED = VALUE" + SEEDED.format("SEED")),
    "a seed of arguments that worker_init_fn reads": rows(
        "return i", "args = types.SimpleNamespace(seed=VALUE, lr=VALUE)" + SEEDED.format("args.seed")
    ),
    "a seed of a table that worker_init_fn reads": rows(
        "return i", "cfg = {'seed': VALUE, 'lr': VALUE}" + SEEDED.format("cfg['seed']")
    ),
    "a seed in the closure of worker_init_fn": rows(
        "return i",
        "def by(seed):\n    def init(w):\n        torch.manual_seed(seed + w)\n    return init\nworker_init_fn = by(VALUE)",
    ),
    "a seed that worker_init_fn has by default": rows(
        "return i", "worker_init_fn = lambda w, seed=VALUE: torch.manual_seed(seed + w)"
    ),
    "a seed of an object that is worker_init_fn": rows(
        "return i",
        "class Init:\n    def __init__(self, seed):\n        self.seed = seed\n    def __call__(self, w):\n        torch.manual_seed(self.seed + w)\nworker_init_fn = Init(VALUE)",
    ),
    "a generator of NumPy": rows("return i", after="dataset.rng = np.random.default_rng(VALUE)"),
    "a generator of torch": rows("return i", after="dataset.rng = torch.Generator().manual_seed(VALUE)"),
    "a generator of Python": rows("return i", after="dataset.rng = random.Random(VALUE)"),
    "a cached property that was read": rows("return i * self.n", inside=CACHED.format("3"), second="dataset.n"),
    "a cache that was filled": rows("return f(i)", "@functools.lru_cache\ndef f(i):\n    return i", second="f(3)"),
    "a cached method that was called": rows(
        "return self.f(i)", inside="@functools.lru_cache\ndef f(self, i):\n    return i", second="dataset.f(3)"
    ),
    "a counter that is dropped": rows(
        "self.count = getattr(self, 'count', 0) + 1\nreturn i",
        inside="def __getstate__(self):\n    return {}",
        second="dataset[0]",
    ),
    "a lazily opened file": rows(
        "if self.file is None:\n    self.file = open(__file__)\nreturn i",
        init="self.file = None",
        inside="def __getstate__(self):\n    return {**vars(self), 'file': None}",
        second="dataset[0]",
        before="__file__ = os.devnull",
    ),
    "a thread and a lock that are dropped": rows(
        "return i",
        "import threading",
        init="self.lock = threading.Lock()\nself.thread = threading.Thread(target=print)",
        inside="def __getstate__(self):\n    return {}\ndef __setstate__(self, state):\n    pass",
    ),
    "a module with a lock, a counter and a logger": Script(
        "import theirs\ndataset = theirs.Rows()\n" + in_second("dataset[0]"),
        {
            "theirs.py": "import threading, logging\nLOCK = threading.Lock()\nlog = logging.getLogger(__name__)\nclass Rows:\n    def __len__(self):\n        return 8\n    def __getitem__(self, i):\n        with LOCK:\n            log.debug('x')\n            return i\n"
        },
    ),
    "a held module whose seed and rank differ": rows(
        "return i * getattr(self.cfg, self.key)",
        "import cfg\ncfg.SEED = cfg.LOCAL_RANK = cfg.LR = VALUE",
        init="self.cfg = cfg\nself.key = 'SIZE'",
        modules={"cfg.py": "SIZE = 3\nSEED = LOCAL_RANK = LR = 1\n"},
    ),
    "a held module of which other parts differ": rows(
        "return i * self.cfg.SIZE",
        "import cfg\ncfg.EPOCHS = VALUE",
        init="self.cfg = cfg",
        modules={"cfg.py": "SIZE = 3\nEPOCHS = 1\n"},
    ),
    "a module that is imported in a call": rows("import cfg\nreturn i * cfg.SIZE", "import cfg", modules=CFG),
    "a module that is imported in a call for the first time": rows("import cfg\nreturn i * cfg.SIZE", modules=CFG),
    "a function of torch that the data do not reach": rows(
        "return torch.tensor(i)", second="torch.nn.functional.gelu = lambda x: x\ntorch.save = lambda *a: None"
    ),
    "print of ranks": rows("print('x')\nreturn i", "import builtins", second="builtins.print = lambda *a, **k: 0"),
    "functions that a library replaced": rows(
        "return F.relu(torch.tensor(-1.0 - i))",
        "import torch.nn.functional as F",
        second="F.relu = F.leaky_relu.__globals__['relu6'] if False else F.relu",
    ),
    "constants of installed modules": rows("return i * np.pi + len(string.digits)", "import string, numpy as np"),
    "a format that PIL is taught by all": rows("assert opened(i) >= 0\nreturn opened(i)", FORMAT.format("True")),
    "PIL in one run only": rows("return i", second="import PIL.Image, PIL.ImageFile, csv"),
    "OpenCV's threads": rows("return int(cv2.getNumThreads() >= 0) * i", "import cv2\ncv2.setNumThreads(VALUE)"),
}
