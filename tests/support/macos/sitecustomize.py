"""Makes Python on Linux lack what it lacks on macOS, and `fork`, which is unsafe there (`tools/like_macos`)."""

import os
import select
import socket
import sys

for module, names in {
    os: "fork forkpty sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler sched_param "
    "SCHED_OTHER copy_file_range eventfd getxattr listxattr memfd_create pidfd_open posix_fadvise posix_fallocate "
    "setxattr splice O_DIRECT O_PATH O_TMPFILE",
    select: "epoll",
    socket: "SO_BINDTODEVICE",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
# On Linux, these end the process without /proc.
sys.modules.update(dict.fromkeys(("envlogger", "reverb", "tensorflow", "tensorflow_datasets", "tf_agents")))
