"""How the pages become a site: `python -m sphinx -W --keep-going -b html docs build/docs`."""

project = "vlmprof"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "vlmprof"
myst_heading_anchors = 3
myst_links_external_new_tab = False
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["style.css"]
highlight_language = "none"  # indented blocks are commands and what they print
