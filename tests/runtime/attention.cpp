// The same program as C++: the header serves both.
#include "attention.c"
