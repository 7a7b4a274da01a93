"""What SConstruct and SConscript are made of. Nothing here knows an axis, and only `graph` knows SCons."""
