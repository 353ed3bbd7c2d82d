-- Return the namespaces that have records, as they are written in keys. ARGV: the hash tags.

return for_tags(function(prefix)
  return call('SMEMBERS', prefix .. 's')
end)
