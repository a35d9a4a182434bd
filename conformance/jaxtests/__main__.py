import sys

from conformance.jaxtests.cli import main

sys.exit(main())
