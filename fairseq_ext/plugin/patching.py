"""Describe and apply the changes that the plugin makes in fairseq (patches)."""

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fairseq_ext.utils.errors import EnvironmentProblem
from fairseq_ext.version import TESTED_FAIRSEQ

COMMANDS = "fairseq_cli."
"""Prefix of fairseq's command modules. A process patches such a module only if it imports the
module, whether before or after the patches are applied."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A function of a patch, and its targets: the attributes of fairseq that it wraps.

    A target may also belong to a library that fairseq uses. A layer without targets is an action:
    its function is called once, without arguments.
    """

    targets: tuple[str, ...]
    """``module:function`` or ``module:Class.method``. If a module has imported a function by
    ``from … import``, name the module that *uses* it. ``Class?`` is a class that some supported
    versions of fairseq lack; they do not need the patch."""
    wrapper: Callable
    """A function that takes the original (a function or a value) and returns its replacement; for
    an action, the function to call. Define it at the top level of a module: :func:`wrap` recognizes
    by its qualified name whether it has already been applied."""
    patch: str = ""
    """The name of the patch that the layer belongs to."""


def replacing(*targets: str, patch: str) -> Callable[[Callable], Layer]:
    """Decorate a function that takes each original target, and returns its replacement.

    A target is a name such as ``fairseq.trainer:Trainer.train_step`` (:attr:`Layer.targets`).
    ``patch`` is the name of the patch to which the function belongs.
    """
    return lambda wrapper: Layer(targets, wrapper, patch)


def around(*targets: str, patch: str) -> Callable[[Callable], Layer]:
    """Decorate a function that fairseq is to call instead of each target (see :func:`replacing`).

    The function gets the original target first, then the arguments of the call.
    """

    def layer(function: Callable) -> Layer:
        @functools.wraps(function)
        def wrapper(original: Callable) -> Callable:
            def call(*args: Any, **kwargs: Any) -> Any:
                return function(original, *args, **kwargs)

            return call

        return Layer(targets, wrapper, patch)

    return layer


def acting(patch: str) -> Callable[[Callable], Layer]:
    """Decorate an action of ``patch``: a function called once, for instance to filter a warning."""
    return lambda action: Layer((), action, patch)


@dataclasses.dataclass(frozen=True)
class Patch:
    """A change to fairseq with its reason: one row of :data:`fairseq_ext.plugin.patches.PATCHES`.

    The modules of patches import fairseq only inside functions, so that the table can be printed
    without fairseq.
    """

    name: str  # the short name that `fairseq-ext doctor` prints
    reason: str  # the problem that occurs without the patch
    layers: tuple[Layer, ...]

    @property
    def kind(self) -> str:
        """The kind of patch, by the folder of its functions: ``repair``, ``security`` and so on."""
        return self.layers[0].wrapper.__module__.split(".")[2].removesuffix("s")


def patches_of(module: ModuleType) -> list[Patch]:
    """List the patches of a module, built from its decorated functions.

    The last paragraph of the docstring of a patch's first function is the reason (``Problem: …``).
    """
    parts: dict[str, list[Layer]] = {}
    for value in vars(module).values():
        if isinstance(value, Layer):
            parts.setdefault(value.patch, []).append(value)
    patches = []
    for name, layers in parts.items():
        doc = inspect.getdoc(layers[0].wrapper) or ""
        paragraph = doc.rpartition("\n\n")[2].removeprefix("Problem:")
        reason = " ".join(paragraph.split()).removesuffix(".")
        patches.append(Patch(name, reason, tuple(layers)))
    return patches


def apply(patch: Patch, start: str = "") -> None:
    """Apply a patch to its targets, or only to the targets that begin with ``start``.

    ``start`` is a module with a colon, such as ``fairseq_cli.train:``. If ``start`` is empty, the
    patch's actions are called too. Raise EnvironmentProblem if the installed fairseq lacks a
    target.
    """
    try:
        for layer in patch.layers:
            if not layer.targets and not start:
                layer.wrapper()
            for target in layer.targets:
                if target.startswith(start):
                    for owner, name in owners(target):
                        wrap(owner, name, layer.wrapper)
    except (AttributeError, ModuleNotFoundError) as error:
        raise EnvironmentProblem(
            f"The patch “{patch.name}” does not fit the installed fairseq ({error}). Install "
            f"the tested one: pip install --no-build-isolation {'=='.join(TESTED_FAIRSEQ)}"
        ) from error


def owners(target: str) -> Iterator[tuple[Any, str]]:
    """Yield each module or class that holds ``target``, and the name of the attribute in it.

    For example, yield ``(Trainer, "train_step")`` for ``fairseq.trainer:Trainer.train_step``. The
    module of a command, such as ``fairseq_cli.train``, is not imported here, because its import
    sets up logging: if it is not loaded yet, yield nothing. If Python runs it as ``__main__`` and
    has also imported it, yield both copies.
    """
    module, _, path = target.replace("?", "").partition(":")
    *classes, name = path.split(".")
    if module.startswith(COMMANDS):
        modules = list(running(module))
    else:
        modules = [importlib.import_module(module)]
    for owner in modules:
        try:
            holder = functools.reduce(getattr, classes, owner)
        except AttributeError:
            if "?" not in target:
                raise
        else:
            yield holder, name


def running(name: str) -> Iterator[Any]:
    """Yield the loaded copies of a command's module: as ``name``, as ``__main__``, or both."""
    if name in sys.modules:
        yield sys.modules[name]
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == name:
        yield main


def module_of(main: Callable) -> str:
    """Return the name of the module whose function is ``main``, also under ``python -m``."""
    spec = inspect.unwrap(main).__globals__["__spec__"]
    return spec.name if spec else ""


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` by ``wrapper(owner.name)``.

    Do nothing if ``wrapper``, or an earlier import of the same function, has wrapped it already.
    """
    declared = inspect.getattr_static(owner, name)
    kind = type(declared) if isinstance(declared, staticmethod | classmethod) else None
    original = declared.__func__ if kind else declared
    maker = f"{wrapper.__module__}.{wrapper.__qualname__}"

    def is_ours(layer: Any) -> bool:
        return getattr(layer, "_wrapped_by", None) == maker

    if is_ours(inspect.unwrap(original, stop=is_ours)):
        return

    # Attributes are not copied, because fairseq stores state in attributes of its functions.
    replacement: Any = functools.update_wrapper(wrapper(original), original, updated=())
    replacement._wrapped_by = maker
    setattr(owner, name, kind(replacement) if kind else replacement)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set the attribute ``owner.name`` to ``value`` within the ``with`` block, then restore it."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def add_options(group: Any, options: Mapping[str, tuple[Any, Any, str]]) -> None:
    """Add options to a dataclass of fairseq's options, such as ``GenerationConfig``.

    ``options`` maps the name of each new field to a type, a default and a help text. The
    constructor of ``group`` does not take the new fields; set attributes of its objects instead.
    fairseq-hydra-train accepts the new options only on the command line, after a plus sign
    (``+optimization.bf16_products=True``): it checks YAML files before it loads the plugin.
    """
    from fairseq.dataclass.initialize import hydra_init

    for name, (kind, default, text) in options.items():
        field = dataclasses.field(default=default, metadata={"help": text})
        holder: Any = dataclasses.make_dataclass("Holder", [(name, kind, field)])
        group.__dataclass_fields__ |= holder.__dataclass_fields__
        group.__annotations__ |= holder.__annotations__
        setattr(group, name, default)
    hydra_init()
