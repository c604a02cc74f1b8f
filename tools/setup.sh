#!/bin/sh
# Makes .venv ready on a fresh Debian, Ubuntu or macOS machine: Python 3.11+, headwater with everything it can use, Java 17+
# for Spark. Asks nothing: a missing package is installed where that is possible without a password, else one line says how.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# install_package APT_PACKAGE BREW_PACKAGE: true when the package manager did it.
install_package() {
    if command -v apt-get >/dev/null 2>&1; then
        as_root=""
        if [ "$(id -u)" -ne 0 ]; then sudo -n true 2>/dev/null || return 1; as_root="sudo -n"; fi
        say "installing $1 with apt-get"
        $as_root apt-get update -qq >&2 || return 1
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >&2 </dev/null
    elif command -v brew >/dev/null 2>&1; then
        say "installing $2 with brew"
        HOMEBREW_NO_AUTO_UPDATE=1 brew install --quiet "$2" >&2 </dev/null
    else
        return 1
    fi
}

new_enough_python() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:-} python3.12 python3.13 python3.11 python3.14 python3; do
        if new_enough_python "$candidate"; then command -v "$candidate"; return 0; fi
    done
    return 1
}

make_venv() {
    [ -x .venv/bin/pip ] && new_enough_python .venv/bin/python && return 0
    python=$(find_python) || { install_package python3 python@3.12 && python=$(find_python); } ||
        die "no Python 3.11 to 3.14 found: install one (apt-get install python3, brew install python@3.12) or set PYTHON"
    say "making .venv with $python"
    rm -rf .venv
    "$python" -m venv .venv >/dev/null 2>&1 && return 0
    # Debian and Ubuntu keep ensurepip in a package of its own, named after the Python version.
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    rm -rf .venv
    install_package "python$version-venv" "python@$version" || die "python has no venv module: apt-get install python$version-venv"
    "$python" -m venv .venv || die "$python -m venv .venv failed"
}

# java_major JAVA: prints 17 for "17.0.9" and 8 for "1.8.0"; nothing where java does not run (macOS has a stub that only complains).
java_major() { "$1" -version 2>&1 </dev/null | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1; }

fits() { major=$(java_major "$1" 2>/dev/null || true); [ -n "$major" ] && [ "$major" -ge 17 ]; }

# Prints the JAVA_HOME to use, an empty line when the java on the PATH will do; false when there is none.
find_java() {
    if [ -n "${JAVA_HOME:-}" ] && fits "$JAVA_HOME/bin/java"; then echo "$JAVA_HOME"; return 0; fi
    if fits java; then echo; return 0; fi
    for home in /usr/lib/jvm/*-17-* /usr/lib/jvm/*-21-* /usr/lib/jvm/default-java /opt/homebrew/opt/openjdk@17 \
        /usr/local/opt/openjdk@17 /opt/homebrew/opt/openjdk /usr/local/opt/openjdk \
        "$(/usr/libexec/java_home -v 17+ 2>/dev/null || true)"; do
        if [ -n "$home" ] && fits "$home/bin/java"; then echo "$home"; return 0; fi
    done
    return 1
}

find_or_install_java() {
    find_java && return 0
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        if install_package "$package" openjdk@17 && find_java; then return 0; fi
    done
    return 1
}

make_venv
say "installing headwater and what it needs into .venv"
.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-input -c constraints.txt -e '.[all,dev]' </dev/null ||
    die "pip could not install headwater; its message stands above"
java_home=$(find_or_install_java) ||
    die "Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless, or brew install openjdk@17, then run make again"
if [ -n "$java_home" ]; then
    printf 'export JAVA_HOME="%s"\n' "$java_home" >.venv/env.sh
else
    printf 'unset JAVA_HOME\n' >.venv/env.sh
fi
say "ready"
