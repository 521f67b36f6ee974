"""One HTML file about one run, or several side by side."""
