"""Which candidate to grow next: the tree of candidates, the policies over it, and a simulator to compare them.

Comes in: measured times of candidates, or their failure. Goes out: a Choice, where to grow the tree and how.
"""

from kernelpro.search.policy import POLICIES, Choice, Policy, make
from kernelpro.search.tree import Action, TreeNode, Tree

__all__ = ["POLICIES", "Action", "Choice", "TreeNode", "Policy", "Tree", "make"]
