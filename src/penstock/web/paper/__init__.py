"""Charts and figures for papers and notebooks: what the page shows, as matplotlib draws it."""
