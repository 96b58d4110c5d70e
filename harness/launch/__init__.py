"""Where work runs when it does not run here: tasks, and the launchers that take them."""
