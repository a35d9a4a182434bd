# Source this as you would CANN's own set_env.sh: it puts the emulated CANN where the real one is looked for.
_cann_home=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE:-$0}")" && pwd)
if [ ! -e "$_cann_home/lib64/libascendcl.so" ]; then
    echo 'set_env.sh: error: this shell does not say where the sourced script lies, or its folder is not whole' >&2
    echo '  fix: source it from bash or zsh, or use eval "$(cann-emulator env)"' >&2
    unset _cann_home
    return 1
fi
export ASCEND_HOME_PATH=$_cann_home
export ASCEND_TOOLKIT_HOME=$_cann_home
export ASCEND_OPP_PATH=$_cann_home/opp
# Sourced again, it adds nothing.
case "${LD_LIBRARY_PATH:-}:" in
"$_cann_home/lib64:"*) ;;
*) export LD_LIBRARY_PATH=$_cann_home/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ;;
esac
case "${PYTHONPATH:-}:" in
"$_cann_home/python:"*) ;;
*) export PYTHONPATH=$_cann_home/python${PYTHONPATH:+:$PYTHONPATH} ;;
esac
# torch_npu's dispatch thread would wait, GIL held, for kernels that need the GIL: launch from the calling thread.
export TASK_QUEUE_ENABLE=${TASK_QUEUE_ENABLE:-0}
# Kernels' threads spin a moment while they wait for each other, then sleep: endless spinning is slow on a busy machine.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-30000}
unset _cann_home
