"""Which candidate to grow next: the tree of candidates, the policies over it, and a simulator to compare them.

Comes in: measured times of candidates, or their failure. Goes out: a Choice, where to grow the tree and how.
"""

from kernelpro.search.policy import POLICIES, Choice, Policy, make_policy
from kernelpro.search.tree import Tree, TreeNode

__all__ = ["POLICIES", "Choice", "TreeNode", "Policy", "Tree", "make_policy"]
