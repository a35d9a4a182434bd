# Source this as you would CANN's own set_env.sh: it puts the emulated CANN where the real one is looked for.
_cann_home=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)
export ASCEND_HOME_PATH=$_cann_home
export ASCEND_TOOLKIT_HOME=$_cann_home
export ASCEND_OPP_PATH=$_cann_home/opp
export LD_LIBRARY_PATH=$_cann_home/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$_cann_home/python${PYTHONPATH:+:$PYTHONPATH}
# torch_npu's dispatch thread would wait, GIL held, for kernels that need the GIL: launch from the calling thread.
export TASK_QUEUE_ENABLE=${TASK_QUEUE_ENABLE:-0}
# Kernels' threads spin a moment while they wait for each other, then sleep: endless spinning is slow on a busy machine.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-30000}
unset _cann_home
