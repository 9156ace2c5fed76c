"""From a request frame to its handler and back: dispatch, context, and forwarding to the controller."""
