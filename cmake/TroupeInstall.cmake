# cmake --install and the package config.
if(TARGET troupe)
  install(TARGETS troupe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
