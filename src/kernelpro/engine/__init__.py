"""What ties the rooms together: procedures that need a pool and a mind."""
