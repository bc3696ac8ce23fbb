grep -q "<title>" web/index.html && echo "web is fine"
