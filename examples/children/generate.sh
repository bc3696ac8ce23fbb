#!/bin/sh
# Writes one build job for each service.
for service in "$@"; do
    name=$(basename "$service")
    printf 'build-%s:\n  script:\n    - test "$RELEASE" = 7\n    - sh %s\n\n' "$name" "$service"
done
