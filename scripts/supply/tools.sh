#!/usr/bin/env bash
# tools.sh sbom|audit: what the project is made of, from its lock files, with the tools of requirements/audit.txt.
#
# sbom writes a CycloneDX list of each lock file to .dapo/sbom. audit says which known vulnerabilities the locked packages have.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly VENV=.dapo/audit LOCK=requirements/audit.txt SBOM=.dapo/sbom
readonly STAMP=$VENV/dapo-stamp

sum=$(sha256sum "$LOCK" | cut -d' ' -f1)
if [ "$(cat $STAMP 2>/dev/null)" != "$sum" ]; then
    scripts/setup.sh
    uv=$(scripts/setup.sh uv)
    "$uv" venv --quiet --clear --python .dapo/venv/bin/python $VENV
    "$uv" pip sync --quiet --python $VENV/bin/python --require-hashes "$LOCK"
    echo "$sum" >$STAMP
fi
case ${1:-} in
    sbom)
        mkdir -p $SBOM
        for lock in requirements/*.txt; do
            [[ $lock != *-overrides.txt ]] || continue
            name=$(basename "$lock" .txt)
            $VENV/bin/cyclonedx-py requirements "$lock" --output-reproducible --of JSON -o "$SBOM/$name.cdx.json"
            echo "$SBOM/$name.cdx.json: $(grep -c '"purl"' "$SBOM/$name.cdx.json") packages"
        done
        ;;
    audit) PATH=$PWD/$VENV/bin:$PATH $VENV/bin/python scripts/supply/audit.py ;;
    *) echo "usage: tools.sh sbom|audit" >&2 && exit 1 ;;
esac
