"""A broker's life under the controller, from opening its log directories to a controlled shutdown."""
