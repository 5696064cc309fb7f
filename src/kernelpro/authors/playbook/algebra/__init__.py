"""Algebra on the operator graph. In: a task's graph (records.Graph). Out: a cheaper graph that computes the
same, and the steps that led there, each with its reason.

simplify.py           applies all rules until none applies
graph_editor.py       a graph that rules can change
constants.py          values that are the same for all finite inputs, reductions over one element, clamps
reduction_first.py    a sum or mean of a product or convolution, computed before it
convolution_sums.py   the sum of a convolution over all positions
products.py           products with diagonal matrices, pooled features, and shifts that a norm removes
reductions.py         what the rules know about reductions
weight_folding.py     scales, shifts and evaluation-mode batch norms as part of the weights

Weights are folded by operators of the graph, in every call: an update of a parameter, however it is made, is
never missed. All rules assume finite values: a reordered sum may be NaN where the original is infinite. So no
rule applies to float16, whose intermediate results overflow easily.
"""
