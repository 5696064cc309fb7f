"""Which candidate to expand next: the tree of candidates, and the policies over it.

Input: the measured times of candidates, or their failure. Output: a Choice, where to expand the tree and how.
"""

from kernelpro.search.policy import POLICIES, Choice, Policy, make_policy
from kernelpro.search.tree import Tree, TreeNode

__all__ = ["POLICIES", "Choice", "Policy", "Tree", "TreeNode", "make_policy"]
