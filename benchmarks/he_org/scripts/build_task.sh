#!/bin/sh
# Set up the submission: quad4fhe in an environment of its own, the model, and the executables that the harness calls.
# The harness runs it from its root. PYTHON names another interpreter that already has quad4fhe.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
submission=$root/submission
network=${QUAD4FHE_NETWORK:-784-128-10}
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$submission/.venv/bin/python
    [ -x "$PYTHON" ] || python3 -m venv "$submission/.venv"
    "$PYTHON" -c "import quad4fhe" 2>/dev/null || "$PYTHON" -m pip install -q "${QUAD4FHE_SOURCE:-quad4fhe}[fast]"
fi
[ -f "$submission/model/$network/figures.json" ] ||
    "$PYTHON" "$submission/model.py" "$submission/model/$network" --network "$network" --data "$root"
QUAD4FHE_NETWORK=$network "$PYTHON" "$submission/stages.py" server_preprocess_model
mkdir -p "$submission/build"
for stage in client_key_generation server_preprocess_model client_preprocess_input client_encode_encrypt_input \
    server_encrypted_compute client_decrypt_decode client_postprocess; do
    printf '#!/bin/sh\nexec "%s" "%s/stages.py" %s "$@"\n' "$PYTHON" "$submission" "$stage" >"$submission/build/$stage"
    chmod +x "$submission/build/$stage"
done
