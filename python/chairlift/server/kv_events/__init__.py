"""Events of the prefix cache for routers outside: which blocks of a tenant this server has."""
