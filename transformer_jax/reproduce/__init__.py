"""The paper's tables run again, beside the figures that it prints."""
