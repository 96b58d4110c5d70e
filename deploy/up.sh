#!/bin/sh
# PostgreSQL and an MLflow server with basic auth, on loopback, without Docker.
#
#   deploy/up.sh [start]    both; prints what a client has to source
#   deploy/up.sh postgres   the database alone (direct store, Optuna)
#   deploy/up.sh status     what runs
#   deploy/up.sh stop       ends both; the data stay
#
# HARNESS_SERVER_DIR  data, logs and secrets (files of mode 0600)
# POSTGRES_PORT 5432, MLFLOW_PORT 5000, MLFLOW_HOST 127.0.0.1, MLFLOW_WORKERS 2
# MLFLOW_ADMIN_PASSWORD_FILE  a file with the password of `admin`; without it one is made up on first use
# POSTGRES_OPTIONS    settings of the database at its creation, such as "fsync=off" for tests
set -eu
umask 077
PATH=$PATH:/usr/sbin:/sbin
home=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$home/.venv/bin/python}
if [ "$(id -u)" = 0 ]; then default=/var/lib/drafter-harness; else default=${XDG_DATA_HOME:-$HOME/.local/share}/drafter-harness; fi
dir=${HARNESS_SERVER_DIR:-$default}
db_port=${POSTGRES_PORT:-5432}
host=${MLFLOW_HOST:-127.0.0.1}
port=${MLFLOW_PORT:-5000}
data=$dir/postgres
url=postgresql+psycopg://harness@127.0.0.1:$db_port

fail() { printf 'error: %s\n  -> %s\n' "$1" "$2" >&2; exit 3; }

secret() { # a new one: 32 characters of a hash over 32 random bytes
  head -c 32 /dev/urandom | sha256sum | cut -c1-32
}

# ---- PostgreSQL ------------------------------------------------------------------------------
bin() { # the newest PostgreSQL of Debian's, or the one on PATH
  for found in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV) "$(dirname "$(command -v pg_ctl || echo /none/x)")"; do
    if [ -x "$found/$1" ]; then echo "$found/$1"; return; fi
  done
  fail "expected PostgreSQL, found no $1" "apt-get install postgresql, or give MLFLOW_BACKEND_STORE_URI to a server of your own"
}

as_owner() { # PostgreSQL refuses to run as root
  if [ "$(id -u)" = 0 ]; then (cd / && exec runuser -u postgres -- "$@"); else "$@"; fi
}

is_up() { [ -d "$data" ] && as_owner "$(bin pg_ctl)" -D "$data" status >/dev/null 2>&1; }

make_database() {
  [ "$(printf %s "$data/.s.PGSQL.$db_port" | wc -c)" -le 107 ] ||
    fail "the path of the database's socket is longer than 107 bytes: $data" "set HARNESS_SERVER_DIR to a shorter one"
  mkdir -p "$dir" && chmod 711 "$dir" && mkdir -p "$data"
  if [ "$(id -u)" = 0 ]; then chown postgres "$data"; fi
  # The superuser is the account that runs it and comes through the socket alone, inside a folder of mode 0700.
  as_owner "$(bin initdb)" -D "$data" -E UTF8 --locale=C --auth-local=peer --auth-host=scram-sha-256 >"$dir/initdb.log" 2>&1 ||
    { rm -rf "$data"; tail -5 "$dir/initdb.log" >&2; fail "the database could not be made in $data" "see $dir/initdb.log"; }
  {
    printf "listen_addresses = '127.0.0.1'\nunix_socket_directories = '%s'\nmax_connections = 200\n" "$data"
    for option in ${POSTGRES_OPTIONS:-}; do printf '%s\n' "$option"; done
  } | as_owner tee -a "$data/postgresql.conf" >/dev/null
}

start_postgres() {
  [ -s "$data/PG_VERSION" ] || make_database
  if ! is_up; then
    as_owner "$(bin pg_ctl)" -D "$data" -l "$data/server.log" -w -t 60 -o "-p $db_port" start >/dev/null ||
      { as_owner tail -5 "$data/server.log" >&2; fail "PostgreSQL did not start on port $db_port" "is the port taken? set POSTGRES_PORT"; }
  fi
  [ -s "$dir/pgpass" ] || make_role
}

ask_sql() { as_owner "$(bin psql)" -X -q -v ON_ERROR_STOP=1 -h "$data" -p "$db_port" "$@"; }

make_role() { # its password goes by standard input: arguments can be read by every user of the machine
  password=$(secret)
  printf "SET client_min_messages = warning; DROP DATABASE IF EXISTS mlflow; DROP DATABASE IF EXISTS mlflow_auth; DROP DATABASE IF EXISTS optuna;
    DROP ROLE IF EXISTS harness; CREATE ROLE harness LOGIN CREATEDB PASSWORD '%s';
    CREATE DATABASE mlflow OWNER harness; CREATE DATABASE mlflow_auth OWNER harness;
    CREATE DATABASE optuna OWNER harness;\n" "$password" | ask_sql -d postgres
  printf '127.0.0.1:*:*:harness:%s\n' "$password" >"$dir/pgpass.new"
  mv "$dir/pgpass.new" "$dir/pgpass"
}

# ---- MLflow ----------------------------------------------------------------------------------
server_pid() { # of our server; nothing when it is gone, or its number is another process's by now
  if [ -s "$dir/mlflow.pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$dir/mlflow.pid")/cmdline" | grep -q 'mlflow server'; then
    cat "$dir/mlflow.pid"
  fi
}

is_healthy() {
  "$python" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=2)' "http://$1:$port/health" >/dev/null 2>&1
}

make_secrets() {
  if [ -n "${MLFLOW_ADMIN_PASSWORD_FILE:-}" ]; then
    [ -s "$MLFLOW_ADMIN_PASSWORD_FILE" ] || fail "expected a password in $MLFLOW_ADMIN_PASSWORD_FILE" "write it there, mode 0600"
    [ "$(stat -Lc %a "$MLFLOW_ADMIN_PASSWORD_FILE")" = 600 ] || fail "$MLFLOW_ADMIN_PASSWORD_FILE can be read by others" "chmod 600 it"
    head -n 1 "$MLFLOW_ADMIN_PASSWORD_FILE" >"$dir/admin-password"
  fi
  [ -s "$dir/admin-password" ] || secret >"$dir/admin-password"
  [ -s "$dir/session-key" ] || secret >"$dir/session-key"
  cat >"$dir/auth.ini" <<INI
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = $url/mlflow_auth
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
INI
  cat >"$dir/client.env" <<ENV
export MLFLOW_TRACKING_URI=http://$1:$port
export MLFLOW_TRACKING_USERNAME=admin
export MLFLOW_TRACKING_PASSWORD='$(sed "s/'/'\\\\''/g" "$dir/admin-password")'
export PGPASSFILE='$dir/pgpass'
export HARNESS_SWEEP_STORAGE=$url/optuna
export HARNESS_STORE_DATABASE=$url/mlflow
ENV
}

start_mlflow() {
  "$python" -c 'import mlflow, psycopg, flask_wtf' 2>/dev/null ||
    fail "expected mlflow, psycopg and flask-wtf for $python" "make setup, or name another interpreter: PYTHON=..."
  near=$host
  case $host in
    127.*|localhost|::1) MLFLOW_SERVER_ALLOWED_HOSTS=${MLFLOW_SERVER_ALLOWED_HOSTS:-localhost:*,127.0.0.1:*}; export MLFLOW_SERVER_ALLOWED_HOSTS ;;
    *)
      if [ "$host" = 0.0.0.0 ]; then near=127.0.0.1; fi
      printf 'warning: the MLflow server listens on %s: other machines reach it, and passwords pass in clear text\n' "$host" >&2
      printf '  -> put a proxy with TLS before it, and set MLFLOW_SERVER_ALLOWED_HOSTS to the names it is called by\n' >&2 ;;
  esac
  make_secrets "$near"
  if [ -n "$(server_pid)" ]; then return; fi
  if is_healthy "$near"; then fail "another server answers at $near:$port" "set MLFLOW_PORT to a free port"; fi
  mkdir -p "$dir/artifacts"
  (
    cd "$dir"
    MLFLOW_BACKEND_STORE_URI=${MLFLOW_BACKEND_STORE_URI:-$url/mlflow}
    PGPASSFILE=$dir/pgpass
    MLFLOW_AUTH_CONFIG_PATH=$dir/auth.ini
    MLFLOW_AUTH_ADMIN_PASSWORD=$(cat admin-password)
    MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat session-key)
    # Weights are named by a model id of this server, never by a path on its disk.
    MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX='^models:/m-[0-9a-f]{32}$'
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
    MLFLOW_DISABLE_TELEMETRY=true
    export MLFLOW_BACKEND_STORE_URI PGPASSFILE MLFLOW_AUTH_CONFIG_PATH MLFLOW_AUTH_ADMIN_PASSWORD \
      MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX \
      MLFLOW_SERVER_ENABLE_JOB_EXECUTION MLFLOW_DISABLE_TELEMETRY
    unset MLFLOW_TRACKING_URI MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD
    exec setsid "$python" -m mlflow server --host "$host" --port "$port" --workers "${MLFLOW_WORKERS:-2}" \
      --app-name basic-auth --serve-artifacts --artifacts-destination "${MLFLOW_ARTIFACTS:-$dir/artifacts}"
  ) >>"$dir/mlflow.log" 2>&1 </dev/null &
  echo $! >"$dir/mlflow.pid"
  waited_s=0
  until is_healthy "$near"; do
    if [ $waited_s -ge 180 ] || ! kill -0 "$(cat "$dir/mlflow.pid")" 2>/dev/null; then
      tail -15 "$dir/mlflow.log" >&2
      stop_mlflow
      fail "the MLflow server was not ready after $waited_s s" "see $dir/mlflow.log"
    fi
    sleep 1
    waited_s=$((waited_s + 1))
  done
}

is_alive() { grep -q '^State:[[:space:]]*[^ZX]' "/proc/$1/status" 2>/dev/null; }

stop_mlflow() {
  pid=$(server_pid)
  if [ -n "$pid" ]; then
    kill -TERM "-$pid" 2>/dev/null || true
    waited=0
    while is_alive "$pid" && [ $waited -lt 50 ]; do sleep 0.2; waited=$((waited + 1)); done
    kill -KILL "-$pid" 2>/dev/null || true
  fi
  rm -f "$dir/mlflow.pid"
}

case ${1:-start} in
  start)
    start_postgres
    start_mlflow
    echo "MLflow: http://$host:$port (user admin)"
    echo "for a client:  . $dir/client.env" ;;
  postgres)
    start_postgres
    echo "PostgreSQL: $url (databases mlflow, optuna)"
    echo "for a client:  export PGPASSFILE=$dir/pgpass" ;;
  stop)
    stop_mlflow
    if is_up; then as_owner "$(bin pg_ctl)" -D "$data" -m fast -w -t 60 stop >/dev/null; fi ;;
  status)
    if is_up; then echo "PostgreSQL: runs on 127.0.0.1:$db_port"; else echo "PostgreSQL: stopped"; fi
    if [ -n "$(server_pid)" ]; then echo "MLflow: runs on $host:$port"; else echo "MLflow: stopped"; fi ;;
  *) fail "expected start, postgres, status or stop, found $1" "see the head of $0" ;;
esac
