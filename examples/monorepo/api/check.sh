grep -q openapi api/openapi.json && echo "api is fine"
