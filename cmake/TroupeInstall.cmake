# cmake --install: the program, headers under include/troupe, the rooms as static libraries, and a package config
# (find_package(troupe) gives troupe::base ... troupe::apps).
include(CMakePackageConfigHelpers)
set(rooms base models parallel training rollout actors apps)
set(targets "")
foreach(room ${rooms})
  list(APPEND targets troupe_${room})
  set_target_properties(troupe_${room} PROPERTIES EXPORT_NAME ${room})
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${room}" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe FILES_MATCHING PATTERN "*.h")
endforeach()
install(TARGETS troupe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS ${targets} EXPORT troupeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT troupeTargets NAMESPACE troupe:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
configure_package_config_file(cmake/troupeConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/troupeConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/troupeConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/troupeConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/troupeConfigVersion.cmake"
  cmake/TroupeTorch.cmake cmake/FindCAF.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
