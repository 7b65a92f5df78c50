"""One visible panel a file: it makes its components and wires its own events."""
