def dump(r):
    return ""
