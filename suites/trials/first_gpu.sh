#!/usr/bin/env bash
# The first minutes with a GPU, in one command: what it is, conformance, then suites, most important first.
#
#     bash suites/trials/first_gpu.sh OUT [DEVICE] [SECONDS]
#
# DEVICE is cuda by default, and SECONDS, of everything, 1500. Each step has a time limit and its output in
# OUT/STEP.log, and the next one runs whatever became of it. OUT/table.txt, also printed, says what worked. Runs are in
# OUT/runs. With DEVICE=cpu the script itself can be tried. Needs the package and its suites; python is $PYTHON.
set -uo pipefail

out=${1:?usage: first_gpu.sh OUT [DEVICE] [SECONDS]} device=${2:-cuda} most=${3:-1500}
python=${PYTHON:-python3} trials=$(cd "$(dirname "$0")" && pwd)
dtype=bfloat16
if [[ $device == cpu ]]; then dtype=float32; fi
mkdir -p "$out/runs"
: >"$out/table.txt"

step() { # NAME LIMIT_S COMMAND..
    local name=$1 limit=$2 begun=$SECONDS status result
    shift 2
    ((limit > most - SECONDS)) && limit=$((most - SECONDS))
    if ((limit < 5)); then
        printf '%-28s %6s  %s\n' "$name" - "no time left" | tee -a "$out/table.txt"
        return
    fi
    timeout -k 10 -s TERM "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    case $status in
    0) result=ok ;;
    124 | 137) result="stopped after its limit of $limit s" ;;
    *) result="exit code $status: $(grep -v '^ *$' "$out/$name.log" | tail -1 | cut -c1-120)" ;;
    esac
    printf '%-28s %4s s  %s\n' "$name" $((SECONDS - begun)) "$result" | tee -a "$out/table.txt"
}

attn() { # NAME LIMIT_S ARGUMENTS..
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$python" -m efficient_attn "$@"
}

facts='
import torch
print("torch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())
for number in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(number))
print("order of attention kernels", torch._C._get_sdp_priority_order())
'
step nvidia-smi 20 nvidia-smi
step facts 60 "$python" -c "$facts"
attn doctor 120 doctor --device "$device" --quick
step memory 90 "$python" "$trials/memory_counts.py" --largest 64 --device "$device"
for spec in full gqa:kv_heads=2 sliding_window:window=128 bigbird linear retention gated_delta_net mla reformer; do
    attn "check_${spec%%:*}" 60 check "$spec" --device "$device" --dtype float32
done
attn promises 300 run promises --device "$device" --dtype "$dtype" --out "$out/runs/promises"
attn gpu_speed 420 run gpu_speed --device "$device" --dtype "$dtype" --out "$out/runs/gpu_speed"
attn gpu_decode 240 run gpu_decode --device "$device" --dtype "$dtype" --seq-len 4K,32K --batch 16 --out "$out/runs/gpu_decode"
attn gpu_linear 300 run gpu_linear --device "$device" --dtype "$dtype" --seq-len 8K --out "$out/runs/gpu_linear"
attn gpu_sparse 240 run gpu_sparse --device "$device" --dtype "$dtype" --seq-len 8K --out "$out/runs/gpu_sparse"
