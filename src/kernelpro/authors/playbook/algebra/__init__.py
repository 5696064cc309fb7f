"""Algebraic simplification. In: a task's operator graph (records.Graph). Out: a cheaper graph that computes
the same, and the rewrites that led there, each with its reason.

simplify.py           applies the rules until none applies any more
graph_editor.py       a graph that rules can change
constants.py          rules for values that do not depend on inputs, reductions over one element, and clamps
reduction_first.py    rule: reduce the operands of a product or convolution instead of its results
convolution_sums.py   the sum of a convolution over positions, as a product or a smaller convolution
pooling.py            rules for two poolings in a row, and averages of a convolution's results
products.py           rules for diagonal matrices, pooled features, flipped weights, and shifts before a norm
reductions.py         reads a node as a reduction or a pooling
weight_folding.py     rule: fold scales and evaluation-mode batch norms into a convolution's weights

Weights are folded by operators of the graph in every call, so that no update of a parameter is missed. All
rules assume finite values: a reordered sum may be NaN where the original is infinite. So no rule that
reorders sums applies to float16, whose intermediate results overflow easily.
"""
