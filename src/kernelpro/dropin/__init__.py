"""Drop-in modules: a reference module with a verified kernel in front of it.

Used by `OptimizationResult.module()` and by exported files, which contain a copy of this package. So it needs
only torch and the standard library.

    spec.py       what was judged: the signature of inputs and outputs, state, settings, tolerance
    reads.py      what a forward pass reads: attributes, globals, closures and code, found by running it
    guards.py     the check before each call, compiled to one expression
    native_guards.py  the part of the check that is about parameters, in C++ if it was built
    kernel.py     creates the kernel with a module's parameters
    module.py     `OptimizedModule`: checks, then the kernel, else the reference
    operator.py   the kernel as a torch operator, for torch.compile and torch.export
    self_test.py  the self-test of an exported kernel
"""
