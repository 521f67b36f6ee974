"""One HTML file about one run, or about several side by side."""
